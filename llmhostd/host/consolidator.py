"""May an instance grow in the place of smaller neighbours, and which fragments are given back? (SLINFER §VIII.)"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from llmhostd.compute.workload import RequestLoad
from llmhostd.consolidation.bin_packing import PackingPolicy, fragments
from llmhostd.consolidation.preemption import Neighbour, PreemptionPolicy, preempt
from llmhostd.domain.actions import HostAction
from llmhostd.domain.ids import InstanceId
from llmhostd.host.fleet import Fleet, NodeRecord
from llmhostd.host.instance import Instance
from llmhostd.host.offers import Move, Offer, Offers
from llmhostd.host.residency import Residency
from llmhostd.host.what_if import WhatIf


@dataclass(slots=True)
class _Hindered:
    """An instance that its neighbours keep from taking a newcomer; implements `preemption.Hindrance`."""

    fleet: Fleet
    offers: Offers
    instance: Instance
    request: RequestLoad
    short_bytes: int
    elsewhere: Sequence[NodeRecord]
    """Nodes to which neighbours' requests may go."""
    now: float
    validations_left: int
    found: dict[tuple[InstanceId, ...], Offer] = field(default_factory=dict)
    """What the instance could do for the newcomer, by who would be gone."""

    def in_time(self, without: Sequence[InstanceId]) -> bool:
        offer = self._ask(self.instance, self.request, WhatIf(emptied=dict.fromkeys(without)), moving=False)
        if offer is not None:
            self.found[tuple(without)] = offer
        return offer is not None

    def rehouse(self, victims: Sequence[InstanceId]) -> tuple[Move, ...] | InstanceId:
        what_if = WhatIf(emptied=dict.fromkeys(victims))
        moves: list[Move] = []
        for name in victims:
            for load in self.fleet.instances[name].load.requests.values():
                if not load.latency_sensitive:
                    continue  # nobody waits for it: it goes back to its queue if it must go
                offer = self._place(replace(load, computed_tokens=0), what_if)
                if offer is None:
                    return name
                new = offer.instance.id not in self.fleet.instances
                what_if.join(offer.instance, offer.request, new=new)
                moves.append(Move(load.shape.id, offer))
        return tuple(moves)

    def _place(self, request: RequestLoad, what_if: WhatIf) -> Offer | None:
        """Find the first place elsewhere for a request whose promise stays what it is."""
        model = self.fleet.models[request.shape.model]
        for instance in self.offers.existing(model, request, self.elsewhere, what_if):
            if offer := self._ask(instance, request, what_if, moving=True):
                return offer
        for draft in self.offers.drafts(model, request, self.now, self.elsewhere, what_if):
            if offer := self._ask(draft, request, what_if, moving=True):
                return offer
        return None

    def _ask(self, instance: Instance, request: RequestLoad, what_if: WhatIf, *, moving: bool) -> Offer | None:
        """Memory first; of the validations that may be spent, one."""
        if moving and self.offers.shortage_bytes(instance, request, what_if) > 0:
            return None
        if self.validations_left <= 0:
            return None
        self.validations_left -= 1
        offer = self.offers.offer(instance, request, self.now, what_if, moving=moving)
        return offer if offer.verdict.accepted else None


class Consolidator:
    """Keeps the box from falling into small pieces."""

    def __init__(
        self, fleet: Fleet, offers: Offers, residency: Residency, packing: PackingPolicy, preemption: PreemptionPolicy
    ) -> None:
        self._fleet = fleet
        self._offers = offers
        self._residency = residency
        self._packing = packing
        self._preemption = preemption

    def make_room(
        self,
        request: RequestLoad,
        hindered: Sequence[tuple[Instance, int]],
        now: float,
        nodes: Sequence[NodeRecord],
    ) -> Offer | None:
        """Let the first of some instances take a newcomer whose neighbours can go elsewhere (§VIII-A).

        `hindered`: instances that could not take it, and the bytes that each lacked (0: it lacked time).
        """
        left = self._preemption.most_validations
        for instance, short_bytes in hindered if request.latency_sensitive else ():
            neighbours = self._neighbours(instance)
            elsewhere = [node for node in nodes if node.spec.id != instance.node_id]
            if not neighbours or not elsewhere:
                continue
            case = _Hindered(
                self._fleet, self._offers, instance, request, short_bytes, elsewhere, now, validations_left=left
            )
            chosen = preempt(instance.batch, neighbours, case, self._preemption)
            if chosen:
                return replace(case.found[chosen.victims], moves=chosen.moves, preempted=chosen.victims)
            left = case.validations_left
        return None

    def reclaim(self, now: float) -> list[HostAction]:
        """Unload fragments that have been idle for a while (§VIII-B)."""
        actions: list[HostAction] = []
        for model in self._fleet.models.values():
            mine = self._offers.all_of(model)
            if len(mine) < 2:
                continue
            for name in fragments([self._offers.standing(one) for one in mine], self._packing):
                one = self._fleet.instances[name]
                unused_s = now - one.last_used_s
                if one.idle and unused_s >= self._packing.fragment_keep_s:
                    because = f"unused for {unused_s:.0f} s; another instance of {one.model} is preferred to it"
                    actions += self._residency.unload(one, now, because)
        return actions

    def _neighbours(self, instance: Instance) -> list[Neighbour]:
        """Those on the same node who are served and could be sent away."""
        node = self._fleet.node_of(instance)
        return [
            Neighbour(one.id, one.batch, node.promised.of(one.id))
            for one in self._fleet.instances_on(node)
            if one is not instance and one.loaded and one.batch and self._fleet.profile_of(one) is not None
        ]
