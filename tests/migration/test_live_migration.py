"""The protocol's table, when a gap is small, and what resuming costs."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiled_box import profile

from llmhostd.compute.estimator import CorrectionPolicy, ProfiledEstimator
from llmhostd.compute.workload import InstanceLoad, RequestLoad
from llmhostd.domain.model import Slo
from llmhostd.domain.request import RequestShape, Tier
from llmhostd.migration.cost import resume_cost
from llmhostd.migration.live_migration import TRANSITIONS, Migration, MigrationPolicy, Phase, Trigger, gap_is_small

UNDER_WAY = (Phase.PREPARING, Phase.RECOMPUTING)
POLICY = MigrationPolicy()


def migration(**more):
    return Migration("wren@cpu0#0", "wren@cpu1#1", "a test wants it", 0.0, **more)


def instance(decodes=0, context=500):
    """20 ms an iteration, 0.2 ms a prompt token, 0.5 ms a decode."""
    shapes = [
        RequestShape(
            id=f"d{n}", model="wren", prompt_tokens=context, max_tokens=50, tier=Tier.LATENCY_SENSITIVE,
            slo=Slo(ttft_s=1.0, tpot_s=0.1), arrived_s=0.0, tokens_out=1,
        )
        for n in range(decodes)
    ]  # fmt: skip
    requests = {one.id: RequestLoad(one, computed_tokens=context, tokens_out=1) for one in shapes}
    return InstanceLoad("wren@cpu1#1", ProfiledEstimator(profile(), CorrectionPolicy()), requests=requests)


def test_whatever_is_lost_or_ends_while_it_is_under_way_ends_the_migration():
    """§5.4: completion, a crash of either end, and giving up, at every step."""
    for phase in UNDER_WAY:
        for trigger in (Trigger.ENDED, Trigger.SOURCE_LOST, Trigger.DESTINATION_LOST, Trigger.GIVEN_UP):
            assert TRANSITIONS[phase, trigger] in (Phase.SWITCHED, Phase.ABANDONED)
    assert all(phase in UNDER_WAY for phase, _ in TRANSITIONS)


def test_every_phase_is_reached():
    reached = {Phase.PREPARING}
    for _ in Phase:
        reached |= {after for (before, _), after in TRANSITIONS.items() if before in reached}
    assert reached == set(Phase)


def test_what_cannot_happen_is_an_error():
    with pytest.raises(KeyError):
        migration().move(Trigger.GAP_SMALL)
    with pytest.raises(KeyError):
        migration(phase=Phase.SWITCHED).move(Trigger.ENDED)


@given(said=st.lists(st.integers(0, 40), min_size=1, max_size=8))
def test_rounds_bring_every_token_once(said):
    one, context, brought = migration(phase=Phase.RECOMPUTING), 100, []
    for tokens in said:
        known = one.send(context)
        brought.append((known, context))
        assert not one.caught_up or context == known
        one.computed_tokens = context - 1
        assert one.caught_up
        context += tokens
        assert one.gap(context) == tokens
    assert brought[0][0] == 0
    assert all(earlier[1] == later[0] for earlier, later in pairwise(brought))


def test_a_gap_that_is_computed_within_two_tokens_is_small():
    one = migration(phase=Phase.RECOMPUTING)
    one.send(1000)
    assert gap_is_small(one, 1010, 0.039, 0.02, POLICY) == "10 tokens behind after 1 rounds: 39 ms"
    assert not gap_is_small(one, 1200, 0.06, 0.02, POLICY)


def test_a_gap_that_shrinks_no_more_is_as_small_as_it_gets():
    one = migration(phase=Phase.RECOMPUTING)
    one.send(1000)
    one.send(1012)
    assert not gap_is_small(one, 1018, 0.3, 0.02, POLICY)
    one.send(1018)
    assert "shrinks no more" in gap_is_small(one, 1024, 0.3, 0.02, POLICY)


def test_a_stream_switches_when_it_has_just_said_something():
    one = migration()
    assert one.says(10)
    assert not one.says(10)
    assert one.says(11)


@given(tokens=st.integers(2, 4000), decodes=st.integers(0, 12))
def test_resuming_costs_what_the_profile_says(tokens, decodes):
    """Against an iteration that computes all of it beside those that decode there."""
    there = instance(decodes)
    cost = resume_cost(there, tokens)
    beside = {"decode_batch": decodes, "decode_context": 501 if decodes else 0}
    whole_s = there.estimator.iteration_s(prefill=((tokens, 0),), **beside)
    assert cost.resume_s(tokens) == pytest.approx(whole_s, rel=0.01, abs=1e-4)
    assert cost.seconds_per_token >= 0.0
    assert cost.resume_s(1) == pytest.approx(there.estimator.iteration_s(prefill=((1, 0),), **beside), rel=0.01)
