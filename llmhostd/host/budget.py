"""How many bytes does an instance need, does a newcomer fit, and who would have to give way?

Two sums per node (SLINFER §VII-C). A promise is made at once, when a request is assigned or an instance is told to give
way; it is granted, and only then used, when the node really has the bytes. Scaling a KV pool is the node's own matter,
early up to the watermark and lazily down. Here a pool is promised what eq. 2 demands and the watermark on top (§VII-B);
where the node is short, the bare demand (§VII-D). What the node reports it has counts in any case.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from llmhostd.compute.workload import RequestLoad
from llmhostd.domain.ids import InstanceId, RequestId
from llmhostd.domain.model import ModelState
from llmhostd.domain.request import Tier
from llmhostd.host.fleet import Fleet, NodeRecord
from llmhostd.host.instance import Instance
from llmhostd.memory import unmeasured
from llmhostd.memory.kv_demand import KvDemandPolicy, demand_bytes
from llmhostd.memory.kv_watermark import WatermarkPolicy
from llmhostd.memory.ledger import PURPOSES, Purpose


@dataclass(frozen=True, slots=True)
class BudgetPolicy:
    """For how long growing a KV pool holds its instance up."""

    kv_copy_s_per_byte: float = 0.0
    """An instance is held up this long, per byte that its KV pool has, while the pool grows. 0: pools grow where they
    are, as those of our engines."""
    kv_allocate_s_per_byte: float = 0.0
    """The same, per byte that the pool gets."""


class Way(StrEnum):
    """How an idle instance gives way."""

    REST = "rest"
    UNLOAD = "unload"


class Budget:
    """The sums of all nodes."""

    def __init__(self, fleet: Fleet, policy: BudgetPolicy, kv: KvDemandPolicy, watermark: WatermarkPolicy) -> None:
        self._fleet = fleet
        self._watermark = 1.0 + watermark.watermark
        self._policy = policy
        self._kv = kv

    def warm_bytes(self, instance: Instance) -> int:
        """What it holds once it is compiled and before it runs."""
        profile = self._fleet.profile_of(instance)
        return profile.warm_bytes if profile else unmeasured.warm_bytes(instance.shape)

    def resident_bytes(self, instance: Instance) -> int:
        """What it holds beside KV once it has run."""
        if instance.state is ModelState.RESIDENT and instance.reported_bytes:
            return instance.reported_bytes
        return self.measured_bytes(instance)

    def measured_bytes(self, instance: Instance) -> int:
        """What a resident instance of its shape holds beside KV, as measured or else estimated."""
        profile = self._fleet.profile_of(instance)
        return profile.resident_bytes if profile else unmeasured.resident_bytes(instance.shape)

    def least_bytes(
        self, instance: Instance, extra: Iterable[RequestLoad] = (), without: Collection[RequestId] = ()
    ) -> tuple[int, int]:
        """Weights and KV that it cannot do without once all that was ordered and assigned (and `extra`) is done.

        `without`: requests that are taken to have ended.
        """
        if instance.state is ModelState.UNLOADING:
            return 0, 0
        here = instance.load.requests
        staying = [one for key, one in here.items() if key not in without] if without else here.values()
        requests = [*staying, *instance.arriving.values(), *extra]
        kv_bytes = self._kv_bytes(instance, requests) if requests else 0
        runs = bool(requests) or self._will_run(instance)
        if instance.resting:
            return (self.resident_bytes(instance) if runs else self.warm_bytes(instance)), kv_bytes
        if runs or instance.state is ModelState.RESIDENT:
            return self.resident_bytes(instance), max(kv_bytes, instance.kv_bytes)
        return max(self.warm_bytes(instance), instance.reported_bytes), kv_bytes

    def shortage_bytes(self, instance: Instance, newcomer: RequestLoad | None = None) -> int:
        """What its node lacks to let it run a newcomer too, even if all who can give way did; 0 or less: it fits."""
        return self.shortage_together([(instance, (newcomer,) if newcomer else ())])

    def shortage_together(self, joining: Sequence[tuple[Instance, Sequence[RequestLoad]]]) -> int:
        """What a node lacks to let several of its instances, new ones too, run newcomers at the same time."""
        node = self._fleet.node_of(joining[0][0])
        beyond_bytes = -node.promised.free_bytes
        for instance, newcomers in joining:
            beyond_bytes += sum(self.least_bytes(instance, newcomers)) - node.promised.of(instance.id)
        if beyond_bytes <= 0:
            return beyond_bytes
        for_people = any(one.latency_sensitive for _, newcomers in joining for one in newcomers)
        taking = [instance for instance, _ in joining]
        yielding = self._yielding(node, but=taking, for_people=for_people)
        others = [*taking, *yielding]
        staying = [one for one in self._fleet.instances_on(node) if not any(one is each for each in others)]
        spare_bytes = sum(self.kv_spare_bytes(one) for one in staying)
        if for_people:
            spare_bytes += sum(self.best_effort_bytes(one) for one in staying)
            spare_bytes += sum(self.best_effort_bytes(one, newcomers) for one, newcomers in joining)
        return beyond_bytes - spare_bytes - sum(node.promised.of(each.id) for each in yielding)

    def best_effort_bytes(self, instance: Instance, newcomers: Iterable[RequestLoad] = ()) -> int:
        """What an instance would need less, with newcomers on it, if its best-effort requests left."""
        leaving = {key: None for key, one in instance.load.requests.items() if not one.latency_sensitive}
        if not leaving:
            return 0
        return sum(self.least_bytes(instance, newcomers)) - sum(self.least_bytes(instance, newcomers, leaving))

    def first_to_leave(self, node: NodeRecord) -> RequestId | None:
        """Find the best-effort request that makes room first on a node: whoever came last; None: none would help."""
        helping = (one for one in self._fleet.instances_on(node) if self.best_effort_bytes(one) > 0)
        requests = [each for one in helping for each in one.load.requests.values() if not each.latency_sensitive]
        return max(requests, key=lambda each: (each.shape.arrived_s, each.shape.id)).shape.id if requests else None

    def kv_spare_bytes(self, instance: Instance) -> int:
        """What was promised to its pool above the bare demand, and is not there yet."""
        if not instance.kv_room:
            return 0
        return self._fleet.node_of(instance).promised.of(instance.id) - sum(self.least_bytes(instance))

    def over_bytes(self, node: NodeRecord) -> int:
        """What a node's instances need beyond what it may hold, once its pools are as small as their demand.

        Negative: what is left.
        """
        unused_bytes = 0
        for one in self._fleet.instances_on(node):
            demand_bytes = self._kv_bytes(one, one.demanding) if one.demanding else 0
            unused_bytes += max(node.promised.of(one.id, Purpose.KV) - demand_bytes, 0)
        return -node.promised.free_bytes - unused_bytes

    def others_must_give_way(self, instance: Instance, newcomer: RequestLoad) -> bool:
        """Whether a newcomer needs more than is free on its node, or was promised to pools and is not there yet."""
        node = self._fleet.node_of(instance)
        need_bytes = sum(self.least_bytes(instance, (newcomer,)))
        beyond_bytes = need_bytes - node.promised.of(instance.id) - node.promised.free_bytes
        if beyond_bytes <= 0:
            return False
        others = (one for one in self._fleet.instances_on(node) if one is not instance)
        return beyond_bytes > sum(map(self.kv_spare_bytes, others))

    def growth_s(self, instance: Instance, newcomer: RequestLoad) -> float:
        """How long an instance's KV pool must grow for a newcomer; 0 when its demand fits (eq. 2)."""
        demand_bytes = self._kv_bytes(instance, (*instance.demanding, newcomer))
        if demand_bytes <= instance.kv_bytes:
            return 0.0
        policy = self._policy
        return instance.kv_bytes * policy.kv_copy_s_per_byte + demand_bytes * policy.kv_allocate_s_per_byte

    def never_fits(self, instance: Instance, newcomer: RequestLoad, *, at_most: bool = False) -> bool:
        """Whether its node would be too small even if it were empty; `at_most`: and had as much as it ever had.

        What nobody waits for can wait until the node has that again.
        """
        alone_bytes = self.resident_bytes(instance) + self._kv_bytes(instance, (newcomer,))
        node = self._fleet.node_of(instance)
        if newcomer.shape.accepted_before:
            return False
        patient = at_most or newcomer.shape.tier is Tier.BEST_EFFORT
        return alone_bytes > (node.most_bytes if patient else node.promised.capacity_bytes)

    def outgrown(self, instance: Instance) -> bool:
        """Whether its answers are longer than expected, so that what it was promised is too little."""
        return sum(self.least_bytes(instance)) > self._fleet.node_of(instance).promised.of(instance.id)

    def who_gives_way(self, node: NodeRecord, but: Instance | None) -> list[tuple[Instance, Way]]:
        """Find whom a node that is short must send away for one of its instances, or (None) because it has less now.

        Rest the least recently used; where that is not enough, unload. What is no smaller at rest, as weights on a GPU,
        would only be loaded again for nothing: it is unloaded.
        """
        short_bytes = -node.promised.free_bytes
        ways: dict[int, tuple[Instance, Way]] = {}
        if short_bytes <= 0:
            return []
        yielding = self._yielding(node, but=[but] if but else [], for_people=but is None or but.waited_for)
        for position, each in enumerate(yielding):
            if short_bytes <= 0:
                break
            if self.warm_bytes(each) >= self.resident_bytes(each):
                continue
            if each.state is ModelState.RESIDENT and not self._will_run(each):
                ways[position] = (each, Way.REST)
                short_bytes -= node.promised.of(each.id) - self.warm_bytes(each)
        for position, each in enumerate(yielding):
            if short_bytes <= 0:
                break
            rested = position in ways
            ways[position] = (each, Way.UNLOAD)
            short_bytes -= self.warm_bytes(each) if rested else node.promised.of(each.id)
        return [ways[position] for position in sorted(ways)]

    def promise(self, instance: Instance) -> None:
        """Promise an instance what it needs, with room above its KV demand if its node has that."""
        node = self._fleet.node_of(instance)
        least = self.least_bytes(instance)
        recommended = self._recommended(instance, least)
        instance.kv_room = sum(recommended) - node.promised.of(instance.id) <= node.promised.free_bytes
        self._note(instance, least, recommended if instance.kv_room else least)

    def promisable_bytes(self, instance: Instance) -> tuple[int, int]:
        """The least and the most that it may be promised."""
        least = self.least_bytes(instance)
        return sum(least), sum(self._recommended(instance, least))

    def settle_for_demand(self, node: NodeRecord) -> None:
        """Take back the room above demands, the largest piece first, as far as a node is short."""
        for instance in sorted(self._fleet.instances_on(node), key=self.kv_spare_bytes, reverse=True):
            if node.promised.free_bytes >= 0 or not self.kv_spare_bytes(instance):
                return
            instance.kv_room = False
            self.refresh(instance)

    def refresh(self, instance: Instance) -> None:
        """Bring both sums up to date with what an instance needs, was granted and reported."""
        least = self.least_bytes(instance)
        self._note(instance, least, self._recommended(instance, least) if instance.kv_room else least)

    def granted(self, instance: Instance) -> bool:
        """Whether it may take up all that it cannot do without."""
        return instance.granted_bytes == self.least_bytes(instance)

    def growth_bytes(self, instance_id: InstanceId) -> int:
        """What it would hold more than now if it took up all that it cannot do without."""
        instance = self._fleet.instances[instance_id]
        target_bytes = sum(map(max, self.least_bytes(instance), (instance.reported_bytes, instance.kv_bytes)))
        return target_bytes - self._fleet.node_of(instance).held.of(instance_id)

    def coming_bytes(self, node: NodeRecord) -> int:
        """What will come free on a node once every rest and unload that was ordered is over."""
        return sum(
            max(node.held.of(each.id, purpose) - node.promised.of(each.id, purpose), 0)
            for each in self._fleet.instances_on(node)
            for purpose in PURPOSES
        )

    def grant(self, instance: Instance) -> None:
        """Let it take up what it cannot do without."""
        instance.granted_bytes = self.least_bytes(instance)
        self.refresh(instance)

    def _recommended(self, instance: Instance, least: tuple[int, int]) -> tuple[int, int]:
        """Weights and KV with the watermark on top, where a pool must grow (§VII-B)."""
        weights_bytes, kv_bytes = least
        return weights_bytes, ceil(kv_bytes * self._watermark) if kv_bytes > instance.kv_bytes else kv_bytes

    def _note(self, instance: Instance, least: tuple[int, int], promise: tuple[int, int]) -> None:
        """Write both sums down. Whatever was granted is held until the node says otherwise, as far as it is needed."""
        node, facts = self._fleet.node_of(instance), (instance.reported_bytes, instance.kv_bytes)
        before = instance.granted_bytes
        weights_bytes, kv_bytes = (
            min(needed, max(granted, fact)) for needed, granted, fact in zip(least, before, facts, strict=True)
        )
        instance.granted_bytes = (weights_bytes, kv_bytes)
        for purpose, promised, granted, fact in zip(PURPOSES, promise, instance.granted_bytes, facts, strict=True):
            node.promised.set(instance.id, purpose, promised)
            node.held.set(instance.id, purpose, max(granted, fact))

    def _yielding(self, node: NodeRecord, but: Sequence[Instance], *, for_people: bool) -> list[Instance]:
        """Those who give way on a node: the idle, and for people also those who run best effort only.

        The idle first; the least recently used first. One that is being measured does not.
        """
        yielding = [
            each
            for each in self._fleet.instances_on(node)
            if each.idle or (for_people and each.loaded and not each.waited_for)
            if self._fleet.profile_of(each) is not None and not any(each is one for one in but)
        ]
        return sorted(yielding, key=lambda each: (not each.idle, each.last_used_s))

    def _will_run(self, instance: Instance) -> bool:
        """Whether its node packs its weights although nobody asks for it: to be ready, or to measure it."""
        return instance.packs or bool(instance.measuring) or not self._fleet.measured(instance)

    def _kv_bytes(self, instance: Instance, requests: Iterable[RequestLoad]) -> int:
        """Eq. 2, with the mean output length of the model."""
        mean_tokens = self._fleet.models[instance.model].outputs.mean_tokens
        return demand_bytes(requests, instance.shape.kv_bytes_per_token, self._kv, mean_tokens)
