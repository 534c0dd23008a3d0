"""A stream that was computed ahead elsewhere goes on as if it had been there from the beginning."""

import pytest
from drive import alone
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_engine import ReferenceInstance

from llmhostd.domain.errors import CallerError
from llmhostd.domain.ids import RequestId
from llmhostd.domain.node_events import RowPlan
from llmhostd.domain.request import Sampling
from llmhostd.engines.runner import PlanError, Runner

GREEDY = Sampling(max_tokens=12, temperature=0.0, ignore_eos=True)
DRAWN = Sampling(max_tokens=12, temperature=1.2, top_p=0.95, seed=7, presence_penalty=0.5, ignore_eos=True)
NAME = RequestId("r")
PROMPT = list(range(5, 45))


def fresh() -> Runner:
    runner = Runner(ReferenceInstance(1, {}))
    runner.resize(64)
    return runner


def rest_of(runner: Runner, said: list[int]) -> list[int]:
    while len(said) < GREEDY.max_tokens:
        said += runner.run([RowPlan(request_id=NAME, tokens=1, sample=True)])[0].tokens
    return said


@settings(max_examples=30, deadline=None)
@given(
    sampling=st.sampled_from([GREEDY, DRAWN]),
    rounds=st.lists(st.integers(1, 11), min_size=1, max_size=4, unique=True).map(sorted),
    chunk=st.integers(1, 50),
    late=st.integers(0, 3),
)
def test_rounds_bring_what_a_stream_said_and_it_goes_on_from_there(
    sampling: Sampling, rounds: list[int], chunk: int, late: int
) -> None:
    """`rounds`: output tokens known in each; `late`: tokens that were said after the last of them."""
    whole, runner = alone(fresh(), PROMPT, sampling), fresh()
    known, computed = 0, 0
    for said in rounds:
        context = PROMPT + whole[:said]
        runner.stage(NAME, context[known:])
        known = len(context)
        while computed < known - 1:
            tokens = min(chunk, known - 1 - computed)
            (row,) = runner.run([RowPlan(request_id=NAME, tokens=tokens, sample=False)])
            assert not row.tokens
            computed += row.prefilled
    said = min(rounds[-1] + late, 11)
    runner.submit(NAME, PROMPT + whole[:said], sampling, said)
    pending = len(PROMPT) + said - computed
    (row,) = runner.run([RowPlan(request_id=NAME, tokens=pending, sample=True)])
    assert rest_of(runner, [*whole[:said], *row.tokens]) == whole
    runner.check()
    assert not runner.kv_used_bytes


def test_no_token_of_it_is_drawn_before_it_comes() -> None:
    runner = fresh()
    runner.stage(NAME, PROMPT)
    with pytest.raises(PlanError):
        runner.run([RowPlan(request_id=NAME, tokens=len(PROMPT), sample=True)])
    with pytest.raises(PlanError):
        runner.run([RowPlan(request_id=NAME, tokens=len(PROMPT), sample=False)])
    runner.run([RowPlan(request_id=NAME, tokens=len(PROMPT) - 1, sample=False)])
    runner.drop(NAME)
    assert not runner.kv_used_bytes


def test_it_comes_with_what_was_staged_or_not_at_all() -> None:
    runner = fresh()
    runner.stage(NAME, PROMPT)
    with pytest.raises(PlanError, match="another context"):
        runner.submit(NAME, [1, *PROMPT], GREEDY)
    with pytest.raises(CallerError):
        runner.stage(NAME, [-1])
    with pytest.raises(CallerError):
        runner.stage(RequestId("other"), [])
