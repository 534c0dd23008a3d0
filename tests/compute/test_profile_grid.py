"""Both stages of a profile must be full grids of at least two points per axis, whatever the model's context."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmhostd.compute.estimator import ProfiledEstimator
from llmhostd.compute.profile_grid import DecodePoint, GridPolicy, PrefillPoint, grid_for
from llmhostd.domain.ids import HardwareKey
from llmhostd.domain.model import Architecture, ComputePrecision, KvPrecision, ModelShape, WeightFormat
from llmhostd.domain.profile import DecodeSample, PrefillSample, Profile

ARCHITECTURE = Architecture(
    family="llama", layers=12, hidden=768, heads=12, kv_heads=4, head_dim=64, intermediate=3072, vocab=32000,
    max_context_tokens=2048, norm_eps=1e-5, rope_theta=1e4,
)  # fmt: skip


def shape_with(context):
    return ModelShape(
        architecture=msgspec.structs.replace(ARCHITECTURE, max_context_tokens=context), weights=WeightFormat.BF16,
        compute=ComputePrecision.BF16, kv=KvPrecision.U8, weight_bytes=312_000_000, kv_bytes_per_token=6144,
    )  # fmt: skip


def measured(shape, points):
    prefill, decode = [], []
    for point in points:
        if isinstance(point, PrefillPoint):
            seconds = 1e-3 * point.chunk_tokens
            prefill.append(
                PrefillSample(chunk_tokens=point.chunk_tokens, past_tokens=point.past_tokens, seconds=seconds)
            )
        else:
            decode.append(DecodeSample(batch=point.batch, context_tokens=point.context_tokens, seconds=1e-3))
    return Profile(
        shape_key=shape.key, hardware_key=HardwareKey("box"), prefill=tuple(prefill), decode=tuple(decode),
        load_s=1, first_run_s=1, resident_bytes=1, warm_bytes=1,
    )  # fmt: skip


@given(st.integers(32, 200_000))
def test_each_stage_can_be_served_with(context):
    shape = shape_with(context)
    grid = grid_for(shape)
    for points in (grid.coarse, grid.coarse + grid.fine):
        ProfiledEstimator(measured(shape, points))
        assert len(set(points)) == len(points)
        chunks = {p.chunk_tokens for p in points if isinstance(p, PrefillPoint)}
        batches = {p.batch for p in points if isinstance(p, DecodePoint)}
        assert len(chunks) >= 2
        assert len(batches) >= 2
    for point in grid.coarse + grid.fine:
        if isinstance(point, PrefillPoint):
            assert point.chunk_tokens + point.past_tokens <= context
        else:
            assert point.context_tokens <= context


def test_the_coarse_stage_is_a_small_part():
    grid = grid_for(shape_with(4096))
    coarse_tokens = sum(p.chunk_tokens for p in grid.coarse if isinstance(p, PrefillPoint))
    assert coarse_tokens <= 1500
    assert len(grid.coarse) <= 20
    assert 60 <= len(grid.coarse) + len(grid.fine) <= 120


def test_a_policy_reaches_as_far_as_it_says():
    grid = grid_for(shape_with(8192), GridPolicy(most_chunk_tokens=1024, most_batch=64))
    points = grid.coarse + grid.fine
    assert max(p.chunk_tokens for p in points if isinstance(p, PrefillPoint)) == 1024
    assert max(p.batch for p in points if isinstance(p, DecodePoint)) == 64
    with pytest.raises(StopIteration):
        next(p for p in points if isinstance(p, DecodePoint) and p.context_tokens > 4096)
