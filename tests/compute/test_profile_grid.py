"""The grid of a profile must have two points or more per axis and fit the context, whatever that is."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from llmhostd.compute.estimator import ProfiledEstimator
from llmhostd.compute.profile_grid import GridPolicy, PrefillPoint, grid_for
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
def test_all_of_it_fits_the_context_and_can_be_served_with(context):
    shape = shape_with(context)
    grid = grid_for(shape)
    ProfiledEstimator(measured(shape, grid.points))
    assert len(set(grid.points)) == len(grid.points) <= 120
    assert len(grid.chunks) >= 2
    assert len(grid.batches) >= 2
    assert grid.chunks[-1] + grid.pasts[-1] <= context
    assert grid.contexts[-1] <= context


def test_a_policy_reaches_as_far_as_it_says():
    grid = grid_for(shape_with(8192), GridPolicy(most_chunk_tokens=1024, most_batch=64))
    assert (grid.chunks[-1], grid.batches[-1], grid.contexts[-1]) == (1024, 64, 4096)
