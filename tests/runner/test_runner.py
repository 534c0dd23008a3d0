"""Whatever runs beside it, however it is chunked, moved or resized: a request yields what it yields alone."""

import numpy as np
import pytest
from drive import Driver, alone
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_engine import ARCHITECTURE, BLOCK_TOKENS, ReferenceInstance

from llmhostd.domain.errors import CallerError, EngineError
from llmhostd.domain.ids import RequestId
from llmhostd.domain.node_events import RowPlan
from llmhostd.domain.request import FinishReason, Sampling
from llmhostd.engines.runner import PlanError, Runner
from llmhostd.memory.kv_blocks import KvExhaustedError

GREEDY = Sampling(max_tokens=12, temperature=0.0, ignore_eos=True)
DRAWN = Sampling(max_tokens=12, temperature=1.2, top_p=0.95, seed=7, presence_penalty=0.5, ignore_eos=True)


def fresh(kv_blocks: int = 64, **wanted: float) -> Runner:
    runner = Runner(ReferenceInstance(1, wanted))
    runner.resize(kv_blocks)
    return runner


def prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, ARCHITECTURE.vocab, length).tolist()


def test_what_is_refused_leaves_nothing_behind() -> None:
    runner = fresh()
    beyond = Sampling(max_tokens=3, temperature=0.0, logit_bias={ARCHITECTURE.vocab: 1.0})
    with pytest.raises(CallerError, match="logit_bias: token"):
        runner.submit(RequestId("r"), prompt(1, 9), beyond)
    with pytest.raises(KeyError):
        runner.drop(RequestId("r"))
    assert alone(runner, prompt(2, 9), GREEDY) == alone(fresh(), prompt(2, 9), GREEDY)


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=2, max_size=4),
    sampled=st.lists(st.booleans(), min_size=4, max_size=4),
    schedule=st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=4), max_size=20),
)
def test_mixed_chunked_batches_yield_what_each_request_yields_alone(
    lengths: list[int], sampled: list[bool], schedule: list[list[int]]
) -> None:
    prompts = [prompt(seed, length) for seed, length in enumerate(lengths)]
    kinds = [DRAWN if flag else GREEDY for flag in sampled]
    driver = Driver(fresh())
    for name, (context, kind) in enumerate(zip(prompts, kinds, strict=False)):
        driver.submit(str(name), context, kind)
    for chunks in schedule:
        if live := {
            name: chunk for name, chunk in zip("0123", chunks, strict=True) if chunk and name in driver.pending
        }:
            driver.step(live)
    driver.finish(chunk=7)
    for name, (context, kind) in enumerate(zip(prompts, kinds, strict=False)):
        assert driver.outputs[RequestId(str(name))] == alone(fresh(), context, kind)
        assert driver.reports[RequestId(str(name))][-1].finish is FinishReason.LENGTH


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN])
@pytest.mark.parametrize("moved_after", [1, 5, 11])
def test_a_request_moves_as_its_tokens(sampling: Sampling, moved_after: int) -> None:
    context = prompt(3, 21)
    whole = alone(fresh(), context, sampling)
    assert alone(fresh(), context + whole[:moved_after], sampling, moved_after) == whole[moved_after:]


def test_a_shared_prefix_is_computed_once_and_changes_nothing() -> None:
    system = prompt(0, 3 * BLOCK_TOKENS)
    questions = [system + prompt(seed, 5) for seed in (1, 2)]
    expected = [alone(fresh(), question, GREEDY) for question in questions]
    driver = Driver(fresh())
    assert driver.submit("first", questions[0], GREEDY) == 0
    driver.finish()
    assert driver.submit("second", questions[1], GREEDY) == 3 * BLOCK_TOKENS
    assert driver.submit("again", questions[0], GREEDY) == 3 * BLOCK_TOKENS
    driver.finish()
    assert driver.outputs == {"first": expected[0], "second": expected[1], "again": expected[0]}
    assert [report.cached for report in driver.reports[RequestId("second")]][:2] == [3 * BLOCK_TOKENS, 0]


def test_of_a_burst_with_one_system_prompt_one_pays() -> None:
    system = prompt(0, 4 * BLOCK_TOKENS)
    questions = {str(seed): system + prompt(seed, 5) for seed in range(1, 4)}
    driver = Driver(fresh())
    for name, question in questions.items():
        assert driver.submit(name, question, GREEDY) == 0
    driver.step({"1": 2 * BLOCK_TOKENS})
    assert driver.match_again() == [("2", 2 * BLOCK_TOKENS), ("3", 2 * BLOCK_TOKENS)]
    driver.step({"1": 3, "2": 2 * BLOCK_TOKENS})
    assert driver.match_again() == [("3", 4 * BLOCK_TOKENS)]  # "1" is in the middle of a block
    driver.finish(chunk=6)
    for name, question in questions.items():
        assert driver.outputs[RequestId(name)] == alone(fresh(), question, GREEDY)
        assert sum(report.prefilled for report in driver.reports[RequestId(name)]) == len(question) + 11
    assert sum(report.cached for report in driver.reports[RequestId("3")]) == 4 * BLOCK_TOKENS


def test_a_conversation_reuses_what_it_generated() -> None:
    context = prompt(5, 10)
    driver = Driver(fresh())
    driver.submit("turn 1", context, GREEDY)
    driver.finish()
    second = context + driver.outputs[RequestId("turn 1")] + prompt(6, 4)
    # the last output token was never computed: 21 of 22 tokens have keys and values, two whole blocks of them
    assert driver.submit("turn 2", second, GREEDY) == 2 * BLOCK_TOKENS
    driver.finish()
    assert driver.outputs[RequestId("turn 2")] == alone(fresh(), second, GREEDY)


def test_growing_and_shrinking_mid_way_change_nothing() -> None:
    expected = [alone(fresh(), prompt(seed, 20), GREEDY) for seed in range(3)]
    driver = Driver(fresh(12))
    for seed in range(3):
        driver.submit(str(seed), prompt(seed, 20), GREEDY)
    driver.step({"0": 20, "1": 20, "2": 20})
    driver.drop("0")
    driver.runner.resize(100)
    driver.step({"1": 1, "2": 1})
    driver.runner.resize(8)
    driver.finish()
    assert driver.outputs[RequestId("1")] == expected[1]
    assert driver.outputs[RequestId("2")] == expected[2]
    assert driver.runner.kv_used_bytes == 0
    assert driver.runner.kv_bytes == 8 * driver.runner.instance.kv_bytes_per_block


def test_a_size_that_cannot_be_had_leaves_the_old_one() -> None:
    driver = Driver(fresh(8))
    driver.submit("a", prompt(1, 30), GREEDY)
    driver.step({"a": 30})
    for impossible in (10**9, 2):
        with pytest.raises(EngineError):
            driver.runner.resize(impossible)
        assert driver.runner.kv_bytes == 8 * driver.runner.instance.kv_bytes_per_block
    driver.finish()
    assert driver.outputs[RequestId("a")] == alone(fresh(), prompt(1, 30), GREEDY)


def test_generation_ends_by_stop_tokens_and_end_of_text_or_ignores_the_latter() -> None:
    ignoring = Sampling(max_tokens=40, temperature=2.0, seed=3, ignore_eos=True, logit_bias={2: 6.0})
    tokens = alone(fresh(), prompt(1, 5), ignoring)
    assert len(tokens) == 40
    assert 2 in tokens
    heeding = Sampling(max_tokens=40, temperature=2.0, seed=3, logit_bias={2: 6.0})
    assert alone(fresh(), prompt(1, 5), heeding) == tokens[: tokens.index(2) + 1]
    other = next(token for token in tokens if token != 2)
    stopping = Sampling(
        max_tokens=40, temperature=2.0, seed=3, ignore_eos=True, logit_bias={2: 6.0}, stop_token_ids=(other,)
    )
    driver = Driver(fresh())
    driver.submit("a", prompt(1, 5), stopping)
    driver.finish()
    assert driver.outputs[RequestId("a")] == tokens[: tokens.index(other) + 1]
    assert driver.reports[RequestId("a")][-1].finish is FinishReason.STOP


def test_logprobs_come_with_each_token() -> None:
    driver = Driver(fresh())
    driver.submit("a", prompt(1, 9), Sampling(max_tokens=3, temperature=0.0, logprobs=2, ignore_eos=True))
    driver.finish(chunk=5)
    reports = driver.reports[RequestId("a")]
    assert reports[0].logprobs == ()
    for report in reports[1:]:
        (entry,) = report.logprobs
        assert entry.top[0] == (report.tokens[0], entry.chosen)
        assert len(entry.top) == 2


def test_plans_that_do_not_fit_are_refused_and_nothing_is_lost() -> None:
    driver = Driver(fresh(4))
    driver.submit("a", prompt(1, 20), GREEDY)
    for row in (
        RowPlan(request_id=RequestId("ghost"), tokens=1, sample=False),
        RowPlan(request_id=RequestId("a"), tokens=21, sample=True),
        RowPlan(request_id=RequestId("a"), tokens=20, sample=False),
        RowPlan(request_id=RequestId("a"), tokens=0, sample=False),
    ):
        with pytest.raises(PlanError, match=row.request_id):
            driver.runner.run([row])
    driver.submit("b", prompt(2, 20), GREEDY)
    with pytest.raises(KvExhaustedError, match="b needs 3 more KV blocks, 1 of 4 can be had"):
        driver.step({"a": 20, "b": 20})
    driver.drop("b")
    driver.finish()
    assert driver.outputs[RequestId("a")] == alone(fresh(), prompt(1, 20), GREEDY)


def test_an_engine_that_failed_once_may_go_on() -> None:
    driver = Driver(fresh(fail_at_run=3))
    driver.submit("a", prompt(1, 20), DRAWN)
    with pytest.raises(EngineError, match="asked to fail"):
        driver.finish()
    driver.finish()
    assert driver.outputs[RequestId("a")] == alone(fresh(), prompt(1, 20), DRAWN)


@pytest.mark.parametrize("context", [[], [0, ARCHITECTURE.vocab], [-1]])
def test_bad_tokens_are_the_callers_error(context: list[int]) -> None:
    with pytest.raises(CallerError, match="prompt"):
        fresh().submit(RequestId("a"), context, GREEDY)
