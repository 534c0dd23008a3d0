"""Whose adapters are in the next iteration, when more are asked for than an instance has slots?

Those whose requests are due first. Deadlines of whoever gets tokens move on and those of whoever waits do not, so each
has its turn. As filling a slot takes time, an adapter keeps its own while the others can bear it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from llmhostd.domain.model import ModelShape
from llmhostd.domain.request import RequestShape

FILL_BYTES_PER_S = 1.5e9
"""How fast a slot is filled; measured 2e9 and more on two cores."""


@dataclass(frozen=True, slots=True)
class AdapterRoom:
    """The slots of one instance, as far as its timing goes."""

    slots: int
    fill_s: float
    """What putting an adapter into a slot adds to an iteration."""
    held: tuple[str, ...] = ()
    """Identities of the adapters in slots, the least recently used first."""
    share: float = 0.0
    """What each adapter beyond the first adds to an iteration, as a share of what it takes with none."""

    def after(self, adapters: Sequence[str]) -> "AdapterRoom":
        """Return the slots after an iteration with these adapters."""
        others = [one for one in self.held if one not in adapters]
        kept = others[max(len(others) + len(adapters) - self.slots, 0) :]
        return replace(self, held=(*kept, *adapters))

    def slower(self, adapters: int) -> float:
        """Say how many times longer an iteration takes with so many adapters than with none, but for filling slots.

        One costs nothing: where nobody has an adapter, a slot is read all the same, and profiles are measured so.
        """
        return 1.0 + self.share * max(min(adapters, self.slots) - 1, 0)

    def filling_s(self, adapters: Iterable[str]) -> float:
        """What an iteration with these adapters takes on top, for those that are in no slot yet."""
        return sum(self.fill_s for one in adapters if one not in self.held)


@dataclass(frozen=True, slots=True)
class Wish:
    """When an adapter's requests need it at the latest."""

    adapter: str
    latest_s: float
    """When somebody's next iteration must begin."""
    waited_for: bool
    """Whether a person waits for it; best effort comes behind."""


def room_of(shape: ModelShape) -> AdapterRoom | None:
    """Begin with empty slots.

    A slot adds as much as its bytes are of the base's: those are read where an iteration waits for memory, and rows are
    multiplied by all slots in use where it computes.
    """
    slots = shape.adapters
    if slots is None:
        return None
    share = slots.slot_bytes / max(shape.weight_bytes, 1)
    return AdapterRoom(slots.slots, slots.slot_bytes / FILL_BYTES_PER_S, share=share)


def distinct(shapes: Iterable[RequestShape]) -> tuple[str, ...]:
    """List the adapters that requests name, each once, in their order."""
    return tuple(dict.fromkeys(one.adapter for one in shapes if one.adapter))


def in_turn(wishes: Iterable[Wish], room: AdapterRoom, now: float, keep_s: float) -> tuple[str, ...]:
    """Choose the adapters of the next iteration: as many as there are slots, those that are due first.

    One that is in a slot gives it to another that is due at least `keep_s` before it; to one that can wait no longer
    than that, as soon as it is due before it.
    """
    first: dict[str, tuple[bool, float]] = {}
    for one in wishes:
        kept = one.adapter in room.held or one.latest_s - now <= keep_s
        urgency = (not one.waited_for, one.latest_s - keep_s if kept else one.latest_s)
        first[one.adapter] = min(first.get(one.adapter, urgency), urgency)
    return tuple(sorted(first, key=first.__getitem__)[: room.slots])
