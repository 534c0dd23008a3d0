"""Does a history, decided again, differ exactly where a mind decides otherwise?"""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from llmhostd.bench.load import Load, schedule
from llmhostd.compute.shadow_validation import ShadowPolicy
from llmhostd.domain.actions import HostAction, RefuseRequest
from llmhostd.domain.commands import SubmitRequest
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.events import ClockTicked, HostEvent, RequestArrived
from llmhostd.domain.hardware import NodeSpec
from llmhostd.evaluation.again import Kind, decide_again
from llmhostd.host.core import HostMind
from llmhostd.host.policies import HostPolicies
from llmhostd.simulator.box import complete, make_box
from llmhostd.simulator.chance import Chance, Purpose
from llmhostd.simulator.device import Physics
from llmhostd.simulator.faults import Faults, Misfortune
from llmhostd.simulator.minds import Minds
from llmhostd.simulator.roofline import Roofline
from llmhostd.simulator.workload import requests_of
from llmhostd.simulator.world import World
from llmhostd.state.journal import MadeWith, Start, Step


class Recorded:
    """A mind that keeps what it heard and said."""

    def __init__(self, specs: Sequence[NodeSpec], steps: list[Step]) -> None:
        self._mind = HostMind(specs)
        self._steps = steps

    def step(self, event: HostEvent, now: float) -> list[HostAction]:
        actions = self._mind.step(event, now)
        self._steps.append(Step(now=now, event=event, actions=tuple(actions)))
        return actions


@pytest.fixture(scope="module")
def history() -> tuple[Start, list[Step]]:
    """Crowded, with worker deaths: every kind of decision is in it."""
    box = complete(make_box(models=4, nodes=2, memory_bytes=900 << 20), Roofline())
    load = Load(models=[spec.name for spec in box.models], rate=40.0, requests=250, burst=(2.0, 4.0), seed=5)
    asked = requests_of(schedule(load, load.models), box.models, chance=Chance(5, Purpose.TIERS), best_effort_share=0.2)
    steps: list[Step] = []
    world = World(
        box, asked, seed=5, physics=Physics(), misfortune=Misfortune(Faults(death_every_s=9.0), 5), check_every=1000,
        minds=Minds(host=lambda specs: Recorded(specs, steps)),
    )  # fmt: skip
    world.run()
    start = Start(
        number=1, at_unix_s=0.0, version="1", mind="HostMind", first_kept=1,
        made_with=MadeWith(nodes=box.nodes, policies=HostPolicies()),
    )  # fmt: skip
    # Through the journal's own bytes: what is compared is what a file gives back.
    return start, msgspec.msgpack.decode(msgspec.msgpack.encode(steps), type=list[Step])


def test_the_same_mind_decides_the_same(history: tuple[Start, list[Step]]) -> None:
    start, steps = history
    compared = decide_again(start, steps)
    assert compared.same
    assert compared.first == ()
    assert compared.steps == len(steps) > 500
    kinds = {type(action) for step in steps for action in step.actions}
    assert {SubmitRequest, RefuseRequest} < kinds


def test_a_changed_policy_differs_from_the_first_step_that_it_changes(history: tuple[Start, list[Step]]) -> None:
    start, steps = history
    # Twice as pessimistic: somebody who was admitted is refused, or told to wait longer, at an arrival.
    policies = replace(HostPolicies(), shadow=ShadowPolicy(pessimism=2.2))
    compared = decide_again(start, steps, policies=policies, most=3)
    assert not compared.same
    assert len(compared.first) == 3
    first = compared.first[0]
    assert isinstance(first.event, RequestArrived)
    assert (first.then, first.after_s) == (steps[first.sequence - 1].actions, steps[first.sequence - 1].now)
    assert first.now != first.then
    # Before it, nothing differs, in whatever way one looks.
    assert decide_again(start, steps[: first.sequence - 1], policies=policies).same


def test_a_decision_that_was_otherwise_is_found_where_it_was_and_nowhere_else(
    history: tuple[Start, list[Step]],
) -> None:
    start, steps = history
    at = next(n for n, step in enumerate(steps) if any(isinstance(one, SubmitRequest) for one in step.actions))
    forged = list(steps)
    forged[at] = msgspec.structs.replace(steps[at], actions=())
    compared = decide_again(start, forged)
    assert (compared.deeds_differ, compared.reasons_differ) == (1, 0)
    assert (compared.first[0].sequence, compared.first[0].kind) == (at + 1, Kind.DEED)
    reworded = tuple(msgspec.structs.replace(one, because="whim") for one in steps[at].actions)
    forged[at] = msgspec.structs.replace(steps[at], actions=reworded)
    compared = decide_again(start, forged)
    assert (compared.deeds_differ, compared.reasons_differ) == (0, 1)
    assert compared.first[0].kind is Kind.REASON


def test_a_mind_that_raised_is_expected_to_raise_again(history: tuple[Start, list[Step]]) -> None:
    start, steps = history
    compared = decide_again(start, [*steps, Step(now=steps[-1].now, event=ClockTicked(), error="KeyError: 'x'")])
    assert compared.deeds_differ == 1
    assert compared.first[0].error_then == "KeyError: 'x'"


def test_a_history_without_its_beginning_or_of_another_mind_cannot_be_decided_again(
    history: tuple[Start, list[Step]],
) -> None:
    start, steps = history
    with pytest.raises(OperatorError, match="its first 4 steps were dropped"):
        decide_again(msgspec.structs.replace(start, first_kept=5), steps[4:])
    with pytest.raises(OperatorError, match="decided by ExclusiveMind"):
        decide_again(msgspec.structs.replace(start, mind="ExclusiveMind"), steps)
