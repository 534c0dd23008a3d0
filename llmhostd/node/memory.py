"""Whose byte is it on this node, and which memory operation may run now? (SLINFER §VII-C.)

Two sums over weights and KV of all instances. What is *promised* is what they will hold once everything that was
decided is done: it decides whether a pool may grow. What is *held* is what they may hold at this moment: it executes.
An operation that was promised and does not fit yet waits, and is looked at again at every completed release. As all
that waits fits into the budget once the releases under way are over, nothing waits for ever.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmhostd.domain.ids import InstanceId
from llmhostd.domain.node_events import ResizeKv
from llmhostd.memory.ledger import Ledger, Purpose
from llmhostd.node.instance import NodeInstance
from llmhostd.node.states import RELEASES, Phase


@dataclass(slots=True)
class NodeMemory:
    """The two sums of a node, and the growths that wait."""

    budget_bytes: int
    instances: Mapping[InstanceId, NodeInstance]
    promised: Ledger = field(init=False)
    held: Ledger = field(init=False)
    waiting: dict[InstanceId, str] = field(default_factory=dict)
    """Reservation station: instances whose promised growth does not fit yet, first come first, and why they grow."""

    def __post_init__(self) -> None:
        """Begin with nothing."""
        self.promised, self.held = Ledger(self.budget_bytes), Ledger(self.budget_bytes)

    def set_budget(self, memory_bytes: int) -> None:
        """Change what the instances may hold together; what they do hold stays a fact."""
        self.budget_bytes = self.promised.capacity_bytes = self.held.capacity_bytes = memory_bytes

    def refresh(self, one: NodeInstance) -> None:
        """Bring both sums up to date with what is known of an instance."""
        for ledger, (weights_bytes, kv_bytes) in ((self.promised, promise(one, one.kv_target)), (self.held, hold(one))):
            ledger.set(one.id, Purpose.WEIGHTS, weights_bytes)
            ledger.set(one.id, Purpose.KV, kv_bytes)

    def forget(self, one: NodeInstance) -> None:
        """Take everything back from an instance that is gone."""
        self.waiting.pop(one.id, None)
        self.promised.release(one.id)
        self.held.release(one.id)

    def most_blocks(self, one: NodeInstance) -> int:
        """KV blocks that could be promised to an instance, its weights once they are packed taken off."""
        weights_bytes, _ = promise(one, 1)
        free_bytes = self.promised.free_bytes + self.promised.of(one.id) - weights_bytes
        most = max(free_bytes, 0) // max(one.block_bytes, 1)
        return most if one.kv_ceiling is None else min(most, one.kv_ceiling)

    def resize(self, one: NodeInstance, blocks: int, because: str) -> ResizeKv | None:
        """Promise a pool another size. Returns the operation; None when it must wait for a release.

        What shrinks is executed at once, and counts as it was until it is done.
        """
        one.kv_target = blocks
        one.blocked = True
        one.show_ready()
        if not self._fits(one, blocks):
            self.waiting[one.id] = because
            self.refresh(one)
            return None
        self.waiting.pop(one.id, None)
        one.resizing = True
        self.refresh(one)
        return ResizeKv(instance_id=one.id, kv_blocks=blocks, because=because)

    def resized(self, one: NodeInstance, kv_blocks: int) -> None:
        """Take the size that a pool has now."""
        self.waiting.pop(one.id, None)
        one.resizing = one.blocked = False
        one.kv_blocks = one.kv_target = kv_blocks
        one.show_ready()
        self.refresh(one)

    def due(self) -> ResizeKv | None:
        """Return the first growth that waited and fits now."""
        for instance_id, because in self.waiting.items():
            one = self.instances[instance_id]
            if self._fits(one, one.kv_target):
                return self.resize(one, one.kv_target, because)
        return None

    def call_off(self, one: NodeInstance) -> None:
        """Let an instance stop waiting for its growth: nobody needs it, or it cannot be had any more."""
        if one.id in self.waiting:
            self.resized(one, one.kv_blocks)

    def may_load(self, one: NodeInstance) -> bool:
        """Whether an ordered load fits now."""
        return one.warm_bytes <= self.held.free_bytes

    def overdrawn_bytes(self) -> int:
        """What was promised beyond the budget, because facts overtook the promises; loads that can wait left out."""
        queued_bytes = sum(one.warm_bytes for one in self.instances.values() if one.phase is Phase.QUEUED)
        return max(0, -self.promised.free_bytes - queued_bytes)

    def releasing(self) -> bool:
        """Whether something is on its way out."""
        return any(one.phase in RELEASES or one.kv_target < one.kv_blocks for one in self.instances.values())

    def used_bytes(self) -> int:
        """Weights, and KV blocks in use."""
        kv_bytes = sum(one.blocks_with({}) * one.block_bytes for one in self.instances.values() if one.present)
        return self.held.total(Purpose.WEIGHTS) + kv_bytes

    def _fits(self, one: NodeInstance, blocks: int) -> bool:
        grows_bytes = sum(hold(one, blocks)) - self.held.of(one.id)
        return grows_bytes <= max(self.held.free_bytes, 0)


def promise(one: NodeInstance, blocks: int) -> tuple[int, int]:
    """Weights and KV that an instance will hold when what was decided is done, with a pool of so many blocks."""
    match one.phase:
        case Phase.QUEUED | Phase.LOADING | Phase.RESTING:
            return one.warm_bytes, 0
        case Phase.UNLOADING:
            return 0, 0
        case Phase.FILLING | Phase.WARM if not blocks:
            return one.held_bytes, 0
    # A warm instance with a pool is about to run, which packs its weights.
    return max(one.held_bytes, one.resident_bytes), blocks * one.block_bytes


def hold(one: NodeInstance, blocks: int | None = None) -> tuple[int, int]:
    """Weights and KV that an instance may hold at this moment; `blocks`: if its pool were resized to that now."""
    if blocks is None:
        blocks = one.kv_target if one.resizing else one.kv_blocks
    blocks = max(blocks, one.kv_blocks)
    match one.phase:
        case Phase.QUEUED:
            return 0, 0
        case Phase.LOADING:
            return one.warm_bytes, 0
        case Phase.FILLING | Phase.WARM if blocks:
            return max(one.held_bytes, one.resident_bytes), blocks * one.block_bytes
    return one.held_bytes, blocks * one.block_bytes
