"""Whose byte is it?

One sum over one node's memory, kept per instance and purpose. A node has two (SLINFER §VII-C): what is *promised*
decides what may be admitted, what is *held* decides what may execute now. Both are ledgers.

What a ledger hears are facts, so it may be overdrawn: `free_bytes` is then negative, and nothing fits until somebody
gives something back. Always: owned + free == capacity, and what is lent lies in what is free.
"""

from enum import StrEnum

from llmhostd.domain.ids import InstanceId, ModelName


class Purpose(StrEnum):
    """What an instance needs its bytes for."""

    WEIGHTS = "weights"
    """Packed weights, compiled graph, activations: everything beside KV."""
    KV = "kv"


PURPOSES = tuple(Purpose)
"""All of them; sums are asked for too often to ask the enumeration for its members."""


class Ledger:
    """Bytes per (instance, purpose) on one node."""

    __slots__ = ("_entries", "_owned_bytes", "capacity_bytes", "lent")

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.lent: dict[ModelName, int] = {}
        """Bytes of what is free in which weights are kept that nobody runs (`memory.host_tier`): whoever needs them
        has them at once, so they count as free."""
        self._entries: dict[tuple[InstanceId, Purpose], int] = {}
        self._owned_bytes = 0

    @property
    def owned_bytes(self) -> int:
        """Bytes of all instances and purposes together."""
        return self._owned_bytes

    @property
    def free_bytes(self) -> int:
        """What nobody owns; negative when facts overdrew the node."""
        return self.capacity_bytes - self._owned_bytes

    @property
    def lent_bytes(self) -> int:
        """Bytes of all that is kept in what is free; to be brought back within it whenever that shrinks."""
        return sum(self.lent.values())

    def of(self, instance_id: InstanceId, purpose: Purpose | None = None) -> int:
        """Bytes of one instance: for one purpose, or for all."""
        if purpose is not None:
            return self._entries.get((instance_id, purpose), 0)
        entries = self._entries
        return entries.get((instance_id, Purpose.WEIGHTS), 0) + entries.get((instance_id, Purpose.KV), 0)

    def total(self, purpose: Purpose) -> int:
        """Bytes of all instances for one purpose."""
        return sum(size for (_, why), size in self._entries.items() if why is purpose)

    def set(self, instance_id: InstanceId, purpose: Purpose, size_bytes: int) -> None:
        """Let an instance own exactly this much for a purpose. Raises ValueError for a negative size."""
        if size_bytes < 0:
            raise ValueError(f"{instance_id} cannot own {size_bytes} bytes of {purpose}")
        key = (instance_id, purpose)
        self._owned_bytes += size_bytes - self._entries.get(key, 0)
        if size_bytes:
            self._entries[key] = size_bytes
        else:
            self._entries.pop(key, None)

    def release(self, instance_id: InstanceId) -> int:
        """Take everything back from an instance; says how much that was."""
        before = self._owned_bytes
        for purpose in PURPOSES:
            self.set(instance_id, purpose, 0)
        return before - self._owned_bytes

    def violations(self) -> list[str]:
        """What does not add up, a sentence each; empty when all is well."""
        total = sum(self._entries.values())
        broken = [f"{key[0]} owns {size} bytes of {key[1]}" for key, size in self._entries.items() if size <= 0]
        broken += [f"{size} bytes are lent to {name}" for name, size in self.lent.items() if size <= 0]
        if self.lent and self.lent_bytes > self.free_bytes:
            broken.append(f"{self.lent_bytes} bytes are lent, and {self.free_bytes} are free")
        if total + self.free_bytes != self.capacity_bytes:
            broken.append(f"owned {total} + free {self.free_bytes} != capacity {self.capacity_bytes}")
        return broken
