"""Would the same be decided today about what happened then? The journal's events, run through a fresh mind."""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from llmhostd.domain.actions import HostAction
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.events import HostEvent
from llmhostd.domain.words import Word
from llmhostd.host.core import HostMind
from llmhostd.host.policies import HostPolicies
from llmhostd.state.journal import Start, Step


class Kind(StrEnum):
    """How an answer differs."""

    DEED = "deed"
    """Something else is done, or in another order."""
    REASON = "reason"
    """The same is done, for a reason that is worded otherwise or has other figures in it."""


class Difference(Word):
    """One event that is answered otherwise."""

    sequence: int
    """Of the step, counted from the start of the daemon."""
    after_s: float
    """Since the first step."""
    kind: Kind
    event: HostEvent
    then: tuple[HostAction, ...]
    now: tuple[HostAction, ...]
    error_then: str = ""
    """What the mind raised."""
    error_now: str = ""


class Comparison(Word):
    """A history, decided again."""

    start: int
    at_unix_s: float
    version: str
    steps: int
    actions: int
    deeds_differ: int
    """Steps whose answer does something else."""
    reasons_differ: int
    first: tuple[Difference, ...]
    """The first differences. After the first deed that differs, the events are of a history that is not the new mind's
    own: what follows may follow from it."""

    @property
    def same(self) -> bool:
        """Whether every answer is the same to the letter."""
        return not self.deeds_differ and not self.reasons_differ


def decide_again(
    start: Start, steps: Iterable[Step], *, policies: HostPolicies | None = None, most: int = 5
) -> Comparison:
    """Run a history through a fresh mind with these policies (None: those of then); keep the `most` first differences.

    Raises OperatorError if the history's beginning was dropped, or another mind than ours decided.
    """
    _check(start)
    mind = HostMind(start.made_with.nodes, policies or start.made_with.policies)
    first: list[Difference] = []
    count = actions = 0
    differ = dict.fromkeys(Kind, 0)
    began_s = 0.0
    for count, step in enumerate(steps, start=1):
        began_s = step.now if count == 1 else began_s
        actions += len(step.actions)
        now, error = _answer(mind, step)
        if (now, error) == (step.actions, step.error):
            continue
        kind = Kind.REASON if _deeds(now, error) == _deeds(step.actions, step.error) else Kind.DEED
        differ[kind] += 1
        if len(first) < most:
            first.append(
                Difference(
                    sequence=count, after_s=step.now - began_s, kind=kind, event=step.event, then=step.actions, now=now,
                    error_then=step.error, error_now=error,
                )
            )  # fmt: skip
    return Comparison(
        start=start.number, at_unix_s=start.at_unix_s, version=start.version, steps=count, actions=actions,
        deeds_differ=differ[Kind.DEED], reasons_differ=differ[Kind.REASON], first=tuple(first),
    )  # fmt: skip


def _check(start: Start) -> None:
    if start.first_kept > 1:
        raise OperatorError(
            f"start {start.number}: its first {start.first_kept - 1} steps were dropped, and no history can be decided "
            "again from its middle; a larger journal.max_mib keeps more"
        )
    if start.mind != HostMind.__name__:
        raise OperatorError(f"start {start.number}: decided by {start.mind}, not by {HostMind.__name__}")


def _answer(mind: HostMind, step: Step) -> tuple[tuple[HostAction, ...], str]:
    """Decide. Whatever a mind raises about a history that may not be its own is an answer, too."""
    try:
        return tuple(mind.step(step.event, step.now)), ""
    except Exception as error:  # noqa: BLE001 - shown to a person as a difference
        return (), f"{type(error).__name__}: {error}"


def _deeds(actions: tuple[HostAction, ...], error: str) -> tuple[object, ...]:
    return (*(msgspec.structs.replace(action, because="") for action in actions), error)
