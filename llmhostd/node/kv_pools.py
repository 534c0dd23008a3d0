"""Does an iteration fit into KV memory, and if not: which pool is resized, or who leaves? (SLINFER §VII-B, §VII-D.)

Pools grow early, to demand and watermark; where the node is tight they settle for the bare demand, then for what is
needed now. What still cannot be had is taken from pools that have more than they need, and at last from requests: best
effort first, then whoever can best wait.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from llmhostd.compute.workload import RequestLoad
from llmhostd.domain.ids import InstanceId, ModelName, RequestId
from llmhostd.domain.node_events import ResizeKv
from llmhostd.memory.kv_demand import KvDemandPolicy, OutputLengths, demand_blocks
from llmhostd.memory.kv_watermark import WatermarkPolicy, recommended_blocks, resized_blocks
from llmhostd.node.instance import NodeInstance
from llmhostd.node.memory import NodeMemory

MEASURING_KV_BYTES = 64 << 20
"""KV that samples of a profile may fill: more than caches hold, so that it is read at the speed of memory."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """A request that must leave so that others can go on."""

    request: RequestLoad
    because: str


@dataclass(frozen=True, slots=True)
class Wait:
    """What an instance needs was promised and is not there yet: others may go on meanwhile."""


Obstacle = ResizeKv | Eviction | Wait
"""What comes before an iteration."""


@dataclass(slots=True)
class KvPools:
    """The KV pools of a node within its memory."""

    memory: NodeMemory
    instances: Mapping[InstanceId, NodeInstance]
    demand: KvDemandPolicy
    watermark: WatermarkPolicy
    outputs: dict[ModelName, OutputLengths] = field(default_factory=dict)
    """The output lengths seen of each model."""

    def room_for(self, one: NodeInstance, planned: Mapping[RequestId, int]) -> Obstacle | None:
        """Make room for an iteration of `one` that computes these tokens; None: there is room."""
        need = max(one.blocks_with(planned), 1)
        if need <= one.kv_blocks:
            return None
        if self._stalls(one):
            return self._evict(one, planned, f"{need} KV blocks are needed, and copying {one.kv_blocks} takes too long")
        obstacle = self.grow(one, need) or self._reclaim(f"{one.id} is short of KV blocks", but=one)
        return obstacle or self._evict(one, planned, self._short(one, need))

    def room_to_pack(self, one: NodeInstance) -> Obstacle | None:
        """Make room for the first iteration of a warm instance; None: there is room, or none can be had."""
        return None if one.kv_blocks else self.grow(one, 1)

    def room_to_measure(self, one: NodeInstance, most_blocks: int) -> Obstacle | None:
        """Make room for samples of a profile beside the requests' blocks; None: there is as much as can be had."""
        own = one.blocks_with({})
        wanted = own + max(1, min(most_blocks, MEASURING_KV_BYTES // max(one.block_bytes, 1)))
        most = self.memory.most_blocks(one)
        if one.kv_blocks >= wanted or (own < one.kv_blocks and most < wanted):
            return None
        blocks = min(wanted, most)
        if blocks > own:
            return self._resize(one, blocks, f"samples of its profile fill {blocks - own} KV blocks")
        spare = self._reclaim(f"{one.id} is to be measured", but=one, measured_too=False)
        if spare is None and one.load.requests:
            return self._evict(one, {}, self._short(one, own + 1))
        return spare or Wait()

    def grow(self, one: NodeInstance, need: int) -> Obstacle | None:
        """Grow a pool to at least `need` blocks, with as much above it as can be promised; None: it cannot be had."""
        demand = max(need, self.demand_of(one))
        most = self.memory.most_blocks(one)
        recommended = recommended_blocks(demand, self.watermark)
        if recommended <= most:
            return self._resize(
                one, recommended, f"{need} blocks are needed now; demand {demand} blocks and a watermark"
            )
        for blocks, why in (
            (demand, "memory is tight: bare demand"),
            (need, "memory is tight: no more than this iteration needs"),
        ):
            if blocks <= most:
                return self._resize(one, self._worth_it(blocks, most), f"{need} blocks are needed now; {why}")
        return None

    def shrink(self, one: NodeInstance) -> ResizeKv | None:
        """Shrink a pool that is far above its demand; None: it is not."""
        demand = self.demand_of(one)
        blocks = max(resized_blocks(one.kv_blocks, demand, self.watermark), one.blocks_with({}))
        if one.measuring or not _shrinkable(one) or blocks >= one.kv_blocks:
            return None
        return self.memory.resize(one, blocks, f"demand fell to {demand} blocks")

    def relieve(self) -> ResizeKv | Eviction | None:
        """Give back what was promised beyond the budget: spare KV, then requests; None: it is kept, or no use.

        Where the idle could give enough no request leaves for it: they are the host's to send away.
        """
        if self.memory.promised.free_bytes >= 0:
            return None
        over_bytes = self.memory.overdrawn_bytes()
        if not over_bytes:
            return self._reclaim("a load is short of memory")
        for one in [self.instances[instance_id] for instance_id in self.memory.waiting]:
            self.memory.call_off(one)
        spare = self._reclaim(f"the node is {_megabytes(over_bytes)} over its budget")
        if spare is not None:
            return spare
        idle_bytes = sum(self.memory.promised.of(one.id) for one in self.instances.values() if one.idle)
        holders = [
            request
            for one in self.instances.values()
            if one.present and not one.resizing
            for request in one.load.requests.values()
            if request.computed_tokens
        ]
        if self.memory.overdrawn_bytes() <= idle_bytes or not holders:
            return None
        return _longest(holders, f"the node is {_megabytes(over_bytes)} over its budget")

    def demand_of(self, one: NodeInstance) -> int:
        """Return eq. 2 in blocks, what requests share counted once."""
        return demand_blocks(
            one.load.requests.values(), one.block_tokens, self.demand, self.outputs_of(one).mean_tokens,
            shared_blocks=one.shared_blocks,
        )  # fmt: skip

    def outputs_of(self, one: NodeInstance) -> OutputLengths:
        """The output lengths seen of an instance's model, whichever of its instances said them."""
        return self.outputs.setdefault(one.model, OutputLengths(self.demand))

    def _resize(self, one: NodeInstance, blocks: int, because: str) -> ResizeKv | Wait:
        return self.memory.resize(one, blocks, because) or Wait()

    def _reclaim(self, because: str, but: NodeInstance | None = None, *, measured_too: bool = True) -> ResizeKv | None:
        """Take back what a pool has and does not use: of idle instances all, of others what is above demand.

        The largest piece first. Not `measured_too`: those that are being measured keep theirs, or two that are would
        take it from each other for ever.
        """
        best, best_keep, best_bytes = None, 0, 0
        for each in self.instances.values():
            if each is but or not _shrinkable(each) or (each.measuring and not measured_too):
                continue
            keep = 0 if each.idle else max(self.demand_of(each), each.blocks_with({}))
            spare_bytes = (each.kv_blocks - keep) * each.block_bytes
            if spare_bytes > best_bytes:
                best, best_keep, best_bytes = each, keep, spare_bytes
        return None if best is None else self.memory.resize(best, best_keep, because)

    def _worth_it(self, blocks: int, most: int) -> int:
        """Take half of what can be had where growing a little costs as much as growing a lot."""
        return (blocks + most) // 2 if self.watermark.copy_s_per_byte and blocks < most else blocks

    def _stalls(self, one: NodeInstance) -> bool:
        """Whether growth would hold up several who have had a token for longer than any of them should wait."""
        streams = sum(each.latency_sensitive and each.tokens_out > 0 for each in one.load.requests.values())
        return streams > 1 and self.watermark.too_large_to_copy(one.kv_blocks * one.block_bytes)

    def _short(self, one: NodeInstance, need: int) -> str:
        return f"{need} KV blocks are needed, {self.memory.most_blocks(one)} can be had"

    def _evict(self, one: NodeInstance, planned: Mapping[RequestId, int], why: str) -> Eviction:
        """Choose who leaves for an iteration of `one`: best effort of any instance, if people wait for the iteration.

        Else among its own requests that hold or ask for blocks: who has the longest headroom.
        """
        own = [request for key, request in one.load.requests.items() if request.computed_tokens or key in planned]
        if any(one.load.requests[key].latency_sensitive for key in planned):
            others = [
                request
                for each in self.instances.values()
                if each is not one and _shrinkable(each)
                for request in each.load.requests.values()
                if request.computed_tokens and not request.latency_sensitive
            ]
            if others and all(request.latency_sensitive for request in own):
                return _longest(others, f"{why} for {one.id}")
        return _longest(own or list(one.load.requests.values()), why)


def _shrinkable(one: NodeInstance) -> bool:
    return one.present and not one.blocked and not one.kv_stuck and one.kv_blocks > 0


def _longest(holders: Iterable[RequestLoad], why: str) -> Eviction:
    """What is only staged first, then best effort, then whoever can best wait."""
    longest = max(holders, key=lambda request: (request.staged, not request.latency_sensitive, request.deadline_s))
    which = "it has the longest headroom" if longest.latency_sensitive else "it is best effort"
    return Eviction(longest, f"{why}; {'its stream is elsewhere' if longest.staged else which}")


def _megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.0f} MB"
