"""Which neighbours make room for an instance that wants to grow, and where do their requests go? (SLINFER §VIII-A.)

An instance may be kept from taking a newcomer by its neighbours: they hold the memory that its KV cache needs, or the
device time. Rather than start a fragment elsewhere, it may preempt neighbours with smaller batches than its own, the
smallest first, if every one of their requests passes validation elsewhere: all of them together, not each alone.

Knows neither nodes nor ledgers: whoever asks brings the three questions. Two of them cost shadow validations, so they
are asked last and seldom: memory first, then the most that preemption could give, then the least that is enough.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from llmhostd.domain.ids import InstanceId

MoveT = TypeVar("MoveT", covariant=True)


@dataclass(frozen=True, slots=True)
class PreemptionPolicy:
    """Whether, and how far, instances grow at the expense of smaller ones."""

    preempt: bool = True
    """An instance with a larger batch may take the place of smaller neighbours that can go elsewhere."""
    join_twins: bool = True
    """Somebody who finds no place gets a new instance in the place of one whose requests other instances of its model
    can take, whatever their batches: no two hold the same weights while a third has no room. Not in SLINFER."""
    most_moves: int = 8
    """Requests that are moved for one newcomer at most: each has its whole context computed again."""
    most_validations: int = 24
    """Shadow validations that are spent on finding out, for one newcomer, before it is left at that."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """An instance on the same node."""

    id: InstanceId
    batch: int
    """Requests on it that somebody waits for."""
    gives_bytes: int
    """What the node gets back when it is gone."""


@dataclass(frozen=True, slots=True)
class Preemption(Generic[MoveT]):
    """Who gives way, and where their requests go."""

    victims: tuple[InstanceId, ...]
    """The smallest first."""
    moves: tuple[MoveT, ...]


class Hindrance(Protocol[MoveT]):
    """What keeps an instance from taking a newcomer."""

    short_bytes: int
    """What its node lacks; 0 or less when memory is not it."""

    def in_time(self, without: Sequence[InstanceId]) -> bool:
        """Whether the newcomer would pass validation there if these neighbours had nothing to do."""
        ...

    def rehouse(self, victims: Sequence[InstanceId]) -> tuple[MoveT, ...] | InstanceId:
        """Find places elsewhere for all requests of these together; or say whose could not be placed."""
        ...


def preempt(
    own_batch: int, neighbours: Sequence[Neighbour], hindrance: Hindrance[MoveT], policy: PreemptionPolicy
) -> Preemption[MoveT] | None:
    """Choose who gives way; None when preemption does not help.

    Of all sets whose requests find places one by one, the chosen one has the smallest largest batch, and nobody in it
    gives way for nothing. Where it is the sum of them that finds no place, whoever failed stays, and others are tried.
    """
    if not policy.preempt:
        return None
    smaller = [one for one in neighbours if 0 < one.batch < own_batch and one.batch <= policy.most_moves]
    smaller.sort(key=lambda one: one.batch)
    while smaller:
        victims = _least(smaller, hindrance)
        if not victims or sum(one.batch for one in victims) > policy.most_moves:
            return None
        names = tuple(one.id for one in victims)
        moves = hindrance.rehouse(names)
        if isinstance(moves, tuple):
            return Preemption(names, moves)
        smaller = [one for one in smaller if one.id != moves]
    return None


def _least(smaller: Sequence[Neighbour], hindrance: Hindrance[MoveT]) -> list[Neighbour]:
    """Find the shortest beginning of a list that is enough, without those in it who need not go; empty: none is.

    Whoever goes besides never makes it worse, so that the beginning is found by bisection.
    """

    def enough(some: Sequence[Neighbour]) -> bool:
        in_memory = sum(one.gives_bytes for one in some) >= hindrance.short_bytes
        return in_memory and hindrance.in_time([one.id for one in some])

    if not enough(smaller):
        return []
    shortest = _bisect(len(smaller), lambda count: enough(smaller[:count]))
    victims = list(smaller[:shortest])
    for one in reversed(victims[:-1]):
        without = [each for each in victims if each is not one]
        if enough(without):
            victims = without
    return victims


def _bisect(last: int, enough: Callable[[int], bool]) -> int:
    """Return the least count in 1..last that is enough; `last` is known to be."""
    first = 1
    while first < last:
        middle = (first + last) // 2
        if enough(middle):
            last = middle
        else:
            first = middle + 1
    return last
