"""How many bytes does an instance need, does a newcomer fit, and who would have to give way?

Two sums per node (SLINFER §VII-C). A promise is made at once, when a request is assigned or an instance is told to give
way; it is granted, and only then used, when the node really has the bytes. Scaling a KV pool is the node's own matter:
here it is the larger of what the node reports and what eq. 2 demands.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from llmhostd.compute.workload import RequestLoad
from llmhostd.domain.model import ModelState
from llmhostd.host.fleet import Fleet, NodeRecord
from llmhostd.host.instance import Instance
from llmhostd.memory.kv_demand import KvDemandPolicy, demand_bytes
from llmhostd.memory.ledger import Purpose


@dataclass(frozen=True, slots=True)
class BudgetPolicy:
    """What an instance is taken to hold before it was ever measured."""

    unmeasured_overhead: float = 1.25
    """A resident instance holds its checkpoint's bytes times this."""
    unmeasured_warm_bytes: int = 64 << 20
    """A warm instance holds this much."""


class Way(StrEnum):
    """How an idle instance gives way."""

    REST = "rest"
    UNLOAD = "unload"


class Budget:
    """The sums of all nodes."""

    def __init__(self, fleet: Fleet, policy: BudgetPolicy, kv: KvDemandPolicy) -> None:
        self._fleet = fleet
        self._policy = policy
        self._kv = kv

    def warm_bytes(self, instance: Instance) -> int:
        """What it holds once it is compiled and before it runs."""
        profile = self._fleet.profile_of(instance)
        return profile.warm_bytes if profile else self._policy.unmeasured_warm_bytes

    def resident_bytes(self, instance: Instance) -> int:
        """What it holds beside KV once it has run."""
        if instance.state is ModelState.RESIDENT and instance.reported_bytes:
            return instance.reported_bytes
        return self.measured_bytes(instance)

    def measured_bytes(self, instance: Instance) -> int:
        """What a resident instance of its shape holds beside KV, as measured or else estimated."""
        profile = self._fleet.profile_of(instance)
        return (
            profile.resident_bytes if profile else int(instance.shape.weight_bytes * self._policy.unmeasured_overhead)
        )

    def need_bytes(self, instance: Instance, extra: Iterable[RequestLoad] = ()) -> tuple[int, int]:
        """Weights and KV that it will need when all that was ordered and assigned (and `extra`) is done."""
        if instance.state is ModelState.UNLOADING:
            return 0, 0
        requests = [*instance.load.requests.values(), *extra]
        kv_bytes = self._kv_bytes(instance, requests) if requests else 0
        runs = bool(requests) or not self._fleet.measured(instance)
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
            beyond_bytes += sum(self.need_bytes(instance, newcomers)) - node.promised.of(instance.id)
        if beyond_bytes <= 0:
            return beyond_bytes
        for_people = any(one.latency_sensitive for _, newcomers in joining for one in newcomers)
        taking = [instance for instance, _ in joining]
        yielding = self._yielding(node, but=taking, for_people=for_people)
        return beyond_bytes - sum(node.promised.of(each.id) for each in yielding)

    def others_must_give_way(self, instance: Instance, newcomer: RequestLoad) -> bool:
        """Whether a newcomer needs more than is free on its node."""
        return self._beyond_free_bytes(instance, newcomer) > 0

    def never_fits(self, instance: Instance, newcomer: RequestLoad) -> bool:
        """Whether its node would be too small even if it were empty."""
        alone_bytes = self.resident_bytes(instance) + self._kv_bytes(instance, (newcomer,))
        return alone_bytes > self._fleet.node_of(instance).promised.capacity_bytes

    def outgrown(self, instance: Instance) -> bool:
        """Whether some answer is longer than expected, so that the promise made for it is too small."""
        mean_tokens = self._fleet.models[instance.model].outputs.mean_tokens
        return any(request.tokens_out > mean_tokens for request in instance.load.requests.values())

    def who_gives_way(self, node: NodeRecord, but: Instance | None) -> list[tuple[Instance, Way]]:
        """Find whom a node that is short must send away for one of its instances, or (None) because it has less now.

        Rest the least recently used; where that is not enough, unload.
        """
        short_bytes = -node.promised.free_bytes
        ways: dict[int, tuple[Instance, Way]] = {}
        if short_bytes <= 0:
            return []
        yielding = self._yielding(node, but=[but] if but else [], for_people=but is None or but.waited_for)
        for position, each in enumerate(yielding):
            if short_bytes <= 0:
                break
            if each.state is ModelState.RESIDENT:
                ways[position] = (each, Way.REST)
                short_bytes -= node.promised.of(each.id) - self.warm_bytes(each)
        for position, each in enumerate(yielding):
            if short_bytes <= 0:
                break
            rested = position in ways
            ways[position] = (each, Way.UNLOAD)
            short_bytes -= self.warm_bytes(each) if rested else node.promised.of(each.id)
        return [ways[position] for position in sorted(ways)]

    def refresh(self, instance: Instance) -> None:
        """Bring both sums up to date with what an instance needs, was granted and reported."""
        node = self._fleet.node_of(instance)
        promise = self.need_bytes(instance)
        facts = (instance.reported_bytes, instance.kv_bytes)
        before = instance.granted_bytes
        weights_bytes, kv_bytes = (
            min(promised, max(granted, fact)) for promised, granted, fact in zip(promise, before, facts, strict=True)
        )
        instance.granted_bytes = (weights_bytes, kv_bytes)
        for purpose, promised, granted, fact in zip(Purpose, promise, instance.granted_bytes, facts, strict=True):
            node.promised.set(instance.id, purpose, promised)
            node.held.set(instance.id, purpose, max(granted, fact))

    def granted(self, instance: Instance) -> bool:
        """Whether it may take up all that it was promised."""
        node = self._fleet.node_of(instance)
        weights, kv = Purpose.WEIGHTS, Purpose.KV
        return instance.granted_bytes == (node.promised.of(instance.id, weights), node.promised.of(instance.id, kv))

    def grant(self, instance: Instance) -> bool:
        """Let it take up what it was promised, if the node really has that now."""
        node = self._fleet.node_of(instance)
        promise = self.need_bytes(instance)
        facts = (instance.reported_bytes, instance.kv_bytes)
        grows_bytes = sum(map(max, promise, facts)) - node.held.of(instance.id)
        if grows_bytes > max(node.held.free_bytes, 0):
            return False
        instance.granted_bytes = promise
        self.refresh(instance)
        return True

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

    def _beyond_free_bytes(self, instance: Instance, newcomer: RequestLoad | None) -> int:
        node = self._fleet.node_of(instance)
        need_bytes = sum(self.need_bytes(instance, (newcomer,) if newcomer else ()))
        return need_bytes - node.promised.of(instance.id) - node.promised.free_bytes

    def _kv_bytes(self, instance: Instance, requests: Iterable[RequestLoad]) -> int:
        """Eq. 2, with the mean output length of the model."""
        mean_tokens = self._fleet.models[instance.model].outputs.mean_tokens
        return demand_bytes(requests, instance.shape.kv_bytes_per_token, self._kv, mean_tokens)
