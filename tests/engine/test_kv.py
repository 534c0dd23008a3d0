from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from goldens.families import CASES, prompt

from llmhostd.domain.errors import EngineError
from llmhostd.domain.model import ComputePrecision, KvPrecision
from llmhostd.engines.paged_contexts import Context, PagedContexts

LLAMA = next(case for case in CASES if case.name == "llama")
PRECISIONS = [
    (ComputePrecision.F32, KvPrecision.F32),
    (ComputePrecision.F32, KvPrecision.U8),
    (ComputePrecision.BF16, KvPrecision.BF16),
    (ComputePrecision.BF16, KvPrecision.U8),
]


@pytest.mark.parametrize(("compute", "kv"), PRECISIONS)
def test_growing_and_shrinking_mid_run_changes_nothing(load, compute, kv) -> None:
    instance = load("llama", compute, kv)
    contexts = PagedContexts([instance], kv_blocks=8)
    expected_tokens, expected = contexts.greedy(prompt(LLAMA, 90), 12)
    contexts.resize(200)
    filler, context = Context(prompt(LLAMA, 70)), Context(prompt(LLAMA, 90))
    contexts.step([(filler, 70)])
    rows = [contexts.step([(context, 90)])[0]]
    contexts.release(filler)
    for place, blocks in enumerate((5000, 5000, 8, 8, 4, 300, 300, 5, 64, 64, 4)):
        before = list(context.blocks)
        contexts.resize(blocks)
        assert instance.kv_blocks == blocks
        assert max(context.blocks) < blocks
        assert place != 2 or before != context.blocks  # the first shrink must really move blocks
        context.tokens.append(int(rows[-1].argmax()))
        rows.append(contexts.step([(context, 1)])[0])
    assert [int(row.argmax()) for row in rows] == expected_tokens
    np.testing.assert_array_equal(np.stack(rows), expected)


@pytest.mark.parametrize(("compute", "kv"), PRECISIONS)
def test_block_bytes_are_what_the_shape_promises(load, compute, kv) -> None:
    for name in ("llama", "qwen3"):
        instance = load(name, compute, kv)
        assert instance.kv_bytes_per_block == instance.shape.kv_bytes_per_token * instance.block_tokens


def test_a_move_reads_all_sources_before_it_writes(load) -> None:
    instance = load("llama")
    contexts = PagedContexts([instance], kv_blocks=8)
    one, two = Context(prompt(LLAMA, 20)), Context(prompt(LLAMA, 30))
    expected = [contexts.greedy(context.tokens, 2)[1][1] for context in (one, two)]
    first = contexts.step([(one, 20), (two, 30)])
    (a,), (b,) = one.blocks, two.blocks
    instance.resize_kv(8, ((a, b), (b, a)))
    one.blocks, two.blocks = [b], [a]
    for context, row, reference in zip((one, two), first, expected, strict=True):
        context.tokens.append(int(row.argmax()))
        assert np.abs(contexts.step([(context, 1)])[0] - reference).max() <= 1e-5


def test_what_does_not_fit_is_refused_and_changes_nothing(load) -> None:
    instance = load("llama")  # on a node of 1 GiB
    instance.resize_kv(10)
    most = (1 << 30) // instance.kv_bytes_per_block
    for blocks, moves in ((most + 1, ()), (-1, ()), (5, ((10, 2),)), (5, ((7, 5),)), (5, ((-1, 0),))):
        with pytest.raises(EngineError):
            instance.resize_kv(blocks, moves)
        assert instance.kv_blocks == 10
    instance.resize_kv(most)
    assert instance.kv_blocks == most


def test_kv_that_does_not_go_with_the_computation(load) -> None:
    with pytest.raises(EngineError, match="kv bf16 does not go with compute f32; choose f32 or u8"):
        load("llama", ComputePrecision.F32, KvPrecision.BF16)
    with pytest.raises(EngineError, match="kv f32 does not go with compute bf16; choose bf16 or u8"):
        load("llama", ComputePrecision.BF16, KvPrecision.F32)


def private_kb() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def test_shrinking_gives_memory_back_to_the_system(load) -> None:
    instance = load("llama")
    contexts = PagedContexts([instance], kv_blocks=8)
    contexts.greedy(prompt(LLAMA, 90), 2)
    blocks = (256 << 20) // instance.kv_bytes_per_block
    sizes = []
    for kv_blocks in (0, blocks, 4):
        contexts.resize(kv_blocks)
        for tensor in (view for part in instance._parts for view in part.caches):
            tensor.data[:] = 1
        sizes.append(private_kb() >> 10)
    grown, given_back = (after - before for before, after in pairwise(sizes))
    assert 240 <= grown <= 280
    assert -280 <= given_back <= -240
