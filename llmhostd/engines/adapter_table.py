"""Which adapter is in which slot, who uses it, and which may go for another?

An adapter is known by its identity (`loader.adapter.AdapterWeights.identity`). It stays in its slot while requests use
it, and after that until its slot is needed: the least recently used goes first.
"""

from llmhostd.domain.errors import EngineError

NO_SLOT = -1
"""The slot of requests without an adapter."""


class AdapterTable:
    """The slots of one instance."""

    def __init__(self, slots: int) -> None:
        self._free = list(range(slots))[::-1]
        self._slot_of: dict[str, int] = {}
        """Least recently used first."""
        self._users = [0] * slots

    def __contains__(self, identity: str) -> bool:
        return identity in self._slot_of

    def make_room(self) -> int:
        """Take a slot for an adapter that `put` names next. Raises EngineError when requests use all of them."""
        if self._free:
            return self._free.pop()
        idle = next((one for one, slot in self._slot_of.items() if not self._users[slot]), None)
        if idle is None:
            raise EngineError(f"no room for another adapter: requests use all {len(self._users)}")
        return self._slot_of.pop(idle)

    def put(self, slot: int, identity: str | None) -> None:
        """Say what is in a slot that was made room in; None: nothing."""
        if identity is None:
            self._free.append(slot)
        else:
            self._slot_of[identity] = slot

    def hold(self, identity: str) -> int:
        """Count one more request of an adapter. Returns its slot; raises KeyError when it is in none."""
        slot = self._slot_of.pop(identity)
        self._slot_of[identity] = slot
        self._users[slot] += 1
        return slot

    def release(self, slot: int) -> None:
        """Count one request less."""
        self._users[slot] -= 1
