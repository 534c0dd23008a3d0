"""Does an iteration fit into KV memory, and if not: which pool is resized, or who leaves? (SLINFER §VII-B, §VII-D.)"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from llmhostd.compute.workload import RequestLoad
from llmhostd.domain.ids import InstanceId, RequestId
from llmhostd.domain.node_events import ResizeKv
from llmhostd.memory.kv_demand import KvDemandPolicy, OutputLengths, demand_blocks
from llmhostd.memory.kv_watermark import WatermarkPolicy, recommended_blocks, resized_blocks
from llmhostd.node.instance import NodeInstance


@dataclass(frozen=True, slots=True)
class Eviction:
    """A request that must leave so that others can go on."""

    request: RequestLoad
    because: str


@dataclass(slots=True)
class KvPools:
    """The KV pools of a node within its memory."""

    memory_bytes: int
    instances: Mapping[InstanceId, NodeInstance]
    demand: KvDemandPolicy
    watermark: WatermarkPolicy
    outputs: dict[InstanceId, OutputLengths] = field(default_factory=dict)

    def room_for(self, one: NodeInstance, planned: Mapping[RequestId, int]) -> ResizeKv | Eviction | None:
        """Make room for an iteration of `one` that computes these tokens; None: there is room."""
        need = max(one.blocks_with(planned), 1)
        if need <= one.kv_blocks:
            return None
        growth = self.growth(one, need) or self._reclaim(one)
        if growth is not None:
            return growth
        return self._evict(one, planned, f"{need} KV blocks are needed, {self._most_blocks(one)} can be had")

    def growth(self, one: NodeInstance, need: int) -> ResizeKv | None:
        """Grow a pool to at least `need` blocks, with as much above it as memory allows; None: it cannot be had."""
        demand = max(need, self.demand_of(one))
        most = self._most_blocks(one)
        for blocks, why in (
            (recommended_blocks(demand, self.watermark), f"demand {demand} blocks and a watermark"),
            (demand, "memory is tight: bare demand"),
            (need, "memory is tight: no more than this iteration needs"),
        ):
            if blocks <= most:
                return _resize(one, blocks, f"{need} blocks are needed now; {why}")
        return None

    def shrinkable(self, one: NodeInstance) -> ResizeKv | None:
        """Shrink a pool that is far above its demand; None: it is not."""
        demand = self.demand_of(one)
        blocks = max(resized_blocks(one.kv_blocks, demand, self.watermark), one.blocks_with({}))
        if not one.computes or one.kv_stuck or blocks >= one.kv_blocks:
            return None
        return _resize(one, blocks, f"demand fell to {demand} blocks")

    def demand_of(self, one: NodeInstance) -> int:
        """Return eq. 2 in blocks."""
        return demand_blocks(
            one.load.requests.values(), one.block_tokens, self.demand, self.outputs_of(one).mean_tokens
        )

    def outputs_of(self, one: NodeInstance) -> OutputLengths:
        """The output lengths seen on an instance."""
        return self.outputs.setdefault(one.id, OutputLengths(self.demand))

    def held_bytes(self, but: Collection[InstanceId] = ()) -> int:
        """What all instances hold, weights and KV; only the weights of those in `but`."""
        return sum(each.weights_bytes + (0 if each.id in but else each.kv_bytes) for each in self.instances.values())

    def _most_blocks(self, one: NodeInstance) -> int:
        weights_grow_bytes = max(one.resident_bytes - one.weights_bytes, 0)
        free_bytes = self.memory_bytes - self.held_bytes(but=(one.id,)) - weights_grow_bytes
        most = max(free_bytes, 0) // max(one.block_bytes, 1)
        return most if one.kv_ceiling is None else min(most, one.kv_ceiling)

    def _reclaim(self, one: NodeInstance) -> ResizeKv | None:
        """Take back what another pool has and does not use: of idle instances all, of others what is above demand."""
        best, best_bytes = None, 0
        for each in self.instances.values():
            if each is one or not each.computes or each.kv_stuck:
                continue
            keep = 0 if each.idle else min(max(self.demand_of(each), each.blocks_with({})), each.kv_blocks)
            spare_bytes = (each.kv_blocks - keep) * each.block_bytes
            if spare_bytes > best_bytes:
                best, best_bytes = _resize(each, keep, f"{one.id} is short of KV blocks"), spare_bytes
        return best

    def _evict(self, one: NodeInstance, planned: Mapping[RequestId, int], why: str) -> Eviction:
        """Choose who leaves: best effort first, then whoever can best wait, among those who hold or ask for blocks."""
        holders = [
            request for key, request in one.load.requests.items() if request.computed_tokens > 0 or key in planned
        ]
        longest = max(holders, key=lambda request: (not request.latency_sensitive, request.deadline_s))
        which = "it has the longest headroom" if longest.latency_sensitive else "it is best effort"
        return Eviction(longest, f"{why}; {which}")


def _resize(one: NodeInstance, blocks: int, because: str) -> ResizeKv:
    return ResizeKv(instance_id=one.id, kv_blocks=blocks, because=because)
