"""Whatever shares an iteration, each row must come out as if it were alone."""

import numpy as np
import pytest
from goldens.families import CASES, prompt
from hypothesis import given, settings
from hypothesis import strategies as st

from llmhostd.domain.errors import EngineError
from llmhostd.domain.model import ComputePrecision, KvPrecision
from llmhostd.engines.interface import LoadOptions, ModuleRange
from llmhostd.engines.paged_contexts import Context, PagedContexts

LLAMA, MISTRAL = (next(case for case in CASES if case.name == name) for name in ("llama", "mistral-window"))


def alone(contexts: PagedContexts, tokens: list[int]) -> np.ndarray:
    """Return the logits of every position, computed in one prefill."""
    context = Context(tokens)
    rows = contexts.step([(context, len(tokens))], sample=range(len(tokens)))
    contexts.release(context)
    return rows


@pytest.mark.parametrize("case", [LLAMA, MISTRAL], ids=lambda case: case.name)
def test_prefill_and_decode_mix(load, case) -> None:
    contexts = PagedContexts([load(case.name)], kv_blocks=16)
    prompts = [prompt(case, length) for length in (6, 45, 100, 33)]
    expected = [alone(contexts, tokens) for tokens in prompts]
    running = [Context(tokens) for tokens in prompts]
    # Two decode (one token a step) while two prefill in chunks.
    steps = [1, 1, 40, 16]
    while any(context.done < len(context.tokens) for context in running):
        work = [
            (context, min(step, len(context.tokens) - context.done))
            for context, step in zip(running, steps, strict=True)
            if context.done < len(context.tokens)
        ]
        rows = contexts.step(work)
        for (context, _), row in zip(work, rows, strict=True):
            reference = expected[running.index(context)][context.done - 1]
            assert np.abs(row - reference).max() <= 1e-4


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_split_of_any_batch_gives_the_same_logits(shared_contexts, data: st.DataObject) -> None:
    contexts, expected, tokens = shared_contexts
    running = [Context(one) for one in tokens]
    try:
        while unfinished := [one for one in running if one.done < len(one.tokens)]:
            chosen = data.draw(st.lists(st.sampled_from(unfinished), min_size=1, unique_by=id))
            work = [(one, data.draw(st.integers(1, len(one.tokens) - one.done))) for one in chosen]
            for (one, _), row in zip(work, contexts.step(work), strict=True):
                assert np.abs(row - expected[running.index(one)][one.done - 1]).max() <= 1e-4
    finally:
        for one in running:
            if one.blocks:
                contexts.release(one)


@pytest.fixture(scope="module")
def shared_contexts(engine, checkpoint_of):
    options = LoadOptions(compute=ComputePrecision.F32, kv=KvPrecision.F32, threads=2)
    contexts = PagedContexts([engine.load(checkpoint_of("mistral-window"), options)], kv_blocks=16)
    tokens = [prompt(MISTRAL, length) for length in (9, 34, 65)]
    return contexts, [alone(contexts, one) for one in tokens], tokens


def test_nothing_sampled_gives_no_rows(load) -> None:
    contexts = PagedContexts([load("llama")], kv_blocks=4)
    context = Context(prompt(LLAMA, 40))
    assert contexts.step([(context, 20)], sample=()).shape == (0, 256)
    assert contexts.step([(context, 20)]).shape == (1, 256)


def test_the_result_is_a_view_that_the_next_run_overwrites(load) -> None:
    instance = load("llama")
    contexts = PagedContexts([instance], kv_blocks=4)
    iteration = contexts.iteration([(Context(prompt(LLAMA, 5)), 5)])
    first = instance.run(iteration)
    kept = first.copy()
    assert first.dtype == np.float32
    iteration.token_ids = iteration.token_ids[::-1].copy()
    second = instance.run(iteration)
    assert not np.array_equal(second, kept)


def test_hidden_states_are_asked_for_by_name(load) -> None:
    upper = load("llama", modules=ModuleRange(first=1, end=3, embedding=False))
    contexts = PagedContexts([upper], kv_blocks=4)
    with pytest.raises(EngineError, match="must carry hidden states"):
        contexts.step([(Context([5, 6]), 2)])
