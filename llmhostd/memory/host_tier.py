"""Which models' weights are kept in host memory while nobody runs them? (ServerlessLLM §4.2's memory tier.)

Those that save most: the rate at which a model is asked for, times the seconds that its next start saves, per byte.
What is not kept is left to the system's page cache, which forgets the least recently used first; so is the choice never
worse than that (`chosen`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

from llmhostd.domain.ids import ModelName


@dataclass(frozen=True, slots=True)
class HostTierPolicy:
    """How models' weights are kept in memory that instances leave free, so that starts need no disk."""

    most_share: float = 0.7
    """At most this part of what is free on a node. 0: nothing is kept; the system's page cache does as it likes."""
    displaces: float = 1.25
    """A model takes the place of another in memory if it is expected to save so many times as much."""
    half_life_s: float = 1800.0
    """A request counts half as much after this long when it is told how often a model is asked for."""
    look_every_s: float = 5.0
    """The choice is made this often. Memory that instances need is given up at once."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One model that could be kept."""

    name: ModelName
    bytes: int
    saves_per_s: float
    """Seconds of waiting that it is expected to save, per second."""
    last_asked_s: float
    kept: bool


class AskRate:
    """How often something is asked for, the latest times counting most."""

    __slots__ = ("_decay", "_seen_s", "_weight", "last_s")

    def __init__(self, half_life_s: float) -> None:
        self._decay = log(2.0) / half_life_s
        self._weight = 0.0
        self._seen_s = 0.0
        self.last_s = float("-inf")
        """When it was asked for last."""

    def asked(self, now: float) -> None:
        """It was asked for once."""
        self._weight = self._now(now) + 1.0
        self._seen_s = self.last_s = now

    def per_s(self, now: float) -> float:
        """Times per second, as a process that has gone on like this for long would have."""
        return self._now(now) * self._decay

    def _now(self, now: float) -> float:
        return self._weight * exp(-self._decay * max(now - self._seen_s, 0.0))


def chosen(candidates: Sequence[Candidate], room_bytes: int, displaces: float = 1.0) -> list[ModelName]:
    """Say which models to keep in some bytes, the most saving per byte first.

    Reading another in the place of one that is kept costs the disk, so it must save `displaces` times as much. But for
    that, the choice never saves less than what the least-recently-used rule would keep.
    """
    dear = sorted(candidates, key=lambda one: (-_density(one, displaces), -one.last_asked_s, one.name))
    lately = sorted(candidates, key=lambda one: (-one.last_asked_s, one.name))
    best, floor = _fill(dear, room_bytes), _fill(lately, room_bytes)
    return [one.name for one in (floor if _saving(floor) > displaces * _saving(best) else best)]


def first_to_go(kept: Sequence[Candidate], room_bytes: int) -> list[ModelName]:
    """Say which of those that are kept to give up so that the others fit into some bytes, the least saving first."""
    staying = chosen(kept, room_bytes)
    cheap = sorted(kept, key=lambda one: (_density(one, 1.0), one.last_asked_s, one.name))
    return [one.name for one in cheap if one.name not in staying]


def _density(one: Candidate, displaces: float) -> float:
    return one.saves_per_s / max(one.bytes, 1) * (displaces if one.kept else 1.0)


def _fill(ranked: Sequence[Candidate], room_bytes: int) -> list[Candidate]:
    """One after another, leaving out whoever does not fit any more."""
    taken: list[Candidate] = []
    for one in ranked:
        if one.bytes <= room_bytes:
            taken.append(one)
            room_bytes -= one.bytes
    return taken


def _saving(taken: Sequence[Candidate]) -> float:
    return sum(one.saves_per_s for one in taken)
