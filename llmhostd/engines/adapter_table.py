"""Which adapter is in which slot, and which goes for another?

An adapter is known by its identity (`loader.adapter.AdapterWeights.identity`). It stays in its slot until the slot is
needed by an iteration that it is not in: the least recently used goes first.
"""

from collections.abc import Container

from llmhostd.domain.errors import EngineError

NO_SLOT = -1
"""The slot of requests without an adapter."""


class AdapterTable:
    """The slots of one instance."""

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots))[::-1]
        self._slot_of: dict[str, int] = {}
        """Least recently used first."""

    def __contains__(self, identity: str) -> bool:
        return identity in self._slot_of

    def use(self, identity: str) -> int:
        """Note that an adapter is used now. Returns its slot; raises KeyError when it is in none."""
        slot = self._slot_of.pop(identity)
        self._slot_of[identity] = slot
        return slot

    def make_room(self, keep: Container[str]) -> int:
        """Take a slot for an adapter that `put` names next. Raises EngineError when all hold some to `keep`."""
        if self._free:
            return self._free.pop()
        goes = next((one for one in self._slot_of if one not in keep), None)
        if goes is None:
            raise EngineError(f"no room for another adapter: an iteration uses all {len(self._slot_of)}")
        return self._slot_of.pop(goes)

    def put(self, slot: int, identity: str | None) -> None:
        """Say what is in a slot that was made room in; None: nothing."""
        if identity is None:
            self._free.append(slot)
        else:
            self._slot_of[identity] = slot
