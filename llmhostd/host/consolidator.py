"""May an instance grow in the place of smaller neighbours, and which fragments are given back? (SLINFER §VIII.)"""

from collections import Counter
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
from llmhostd.host.what_if import AS_IT_IS, WhatIf


@dataclass(slots=True)
class _Trial:
    """Asks instances what they would do if others moved, as often as may be asked."""

    fleet: Fleet
    offers: Offers
    nodes: Sequence[NodeRecord]
    """Where requests may move to."""
    now: float
    validations_left: int
    only_existing: bool = False
    """Requests move to instances that there are; none is made for them."""

    def ask(
        self, instance: Instance, request: RequestLoad, what_if: WhatIf = AS_IT_IS, *, moving: bool = True
    ) -> Offer | None:
        """Play an instance's node forward; None when it does not accept."""
        if self.validations_left <= 0:
            return None
        self.validations_left -= 1
        offer = self.offers.offer(instance, request, self.now, what_if, moving=moving)
        return offer if offer.verdict.accepted else None

    def place(self, load: RequestLoad, what_if: WhatIf = AS_IT_IS) -> Offer | None:
        """Find the first other place for a request, where its whole context is computed again."""
        request = replace(load, computed_tokens=0)
        model = self.fleet.models[request.shape.model]
        new = [] if self.only_existing else self.offers.drafts(model, request, self.now, self.nodes, what_if)
        for instance in (*self.offers.existing(model, request, self.nodes, what_if), *new):
            if self.offers.shortage_bytes(instance, request, what_if) <= 0:
                offer = self.ask(instance, request, what_if)
                if offer:
                    return offer
        return None


@dataclass(slots=True)
class _Hindered:
    """An instance that its neighbours keep from taking a newcomer; implements `preemption.Hindrance`."""

    trial: _Trial
    instance: Instance
    request: RequestLoad
    short_bytes: int
    asked: dict[tuple[InstanceId, ...], Offer | None] = field(default_factory=dict)
    """What the instance could do for the newcomer, by who would be gone."""

    def in_time(self, without: Sequence[InstanceId]) -> bool:
        gone = tuple(without)
        if gone not in self.asked:
            what_if = WhatIf(emptied=dict.fromkeys(gone))
            self.asked[gone] = self.trial.ask(self.instance, self.request, what_if, moving=False)
        return self.asked[gone] is not None

    def rehouse(self, victims: Sequence[InstanceId]) -> tuple[Move, ...] | InstanceId:
        what_if = WhatIf(emptied=dict.fromkeys(victims))
        instances = self.trial.fleet.instances
        moves: list[Move] = []
        for name in victims:
            for load in instances[name].load.requests.values():
                if not load.latency_sensitive:
                    continue  # nobody waits for it: it goes back to its queue if it must go
                offer = self.trial.place(load, what_if)
                if offer is None:
                    return name
                what_if.join(offer.instance, offer.request, new=offer.instance.id not in instances)
                moves.append(Move(load.shape.id, offer))
        return tuple(moves)


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
        """Let the first of some instances take a newcomer whose smaller neighbours can go elsewhere (§VIII-A).

        `hindered`: instances that could not take it, and the bytes that each lacked (0: it lacked time).
        """
        return self._take_places(request, hindered, now, nodes, twins=False)

    def join_twins(
        self,
        request: RequestLoad,
        hindered: Sequence[tuple[Instance, int]],
        now: float,
        nodes: Sequence[NodeRecord],
    ) -> Offer | None:
        """Let the first of some new instances have the place of a neighbour whose requests its twins can take.

        Twins are instances of one model: a device and its memory serve that model twice, while another finds no place.
        Only twins that there are: nothing is loaded for this. `hindered`: as for `make_room`.
        """
        return self._take_places(request, hindered, now, nodes, twins=True) if self._preemption.join_twins else None

    def _take_places(
        self,
        request: RequestLoad,
        hindered: Sequence[tuple[Instance, int]],
        now: float,
        nodes: Sequence[NodeRecord],
        *,
        twins: bool,
    ) -> Offer | None:
        """Find the first whose neighbours can go elsewhere: the smaller ones; `twins`: whatever their batches."""
        left = self._preemption.most_validations
        for instance, short_bytes in hindered if request.latency_sensitive else ():
            neighbours = [one for one in self._neighbours(instance) if not twins or self._has_twin(one.id)]
            elsewhere = [node for node in nodes if node.spec.id != instance.node_id]
            if not neighbours or not elsewhere:
                continue
            trial = _Trial(self._fleet, self._offers, elsewhere, now, left, only_existing=twins)
            case = _Hindered(trial, instance, request, short_bytes)
            larger_than = self._preemption.most_moves + 1 if twins else instance.batch
            chosen = preempt(larger_than, neighbours, case, self._preemption)
            accepted = case.asked[chosen.victims] if chosen else None
            if chosen and accepted:
                return replace(accepted, moves=chosen.moves, preempted=chosen.victims)
            left = trial.validations_left
        return None

    def _has_twin(self, name: InstanceId) -> bool:
        """Whether another instance of its model can run now."""
        one = self._fleet.instances[name]
        return any(each is not one and each.loaded for each in self._fleet.instances_of(one.model))

    def rehouse(self, request: RequestLoad, now: float, nodes: Sequence[NodeRecord]) -> Offer | None:
        """Find a place on some nodes for a request that has one elsewhere, whose promise stays what it is."""
        return _Trial(self._fleet, self._offers, nodes, now, len(nodes)).place(request)

    def reclaim(self, now: float) -> list[HostAction]:
        """Unload fragments that have been idle for a while (§VIII-B)."""
        actions: list[HostAction] = []
        instances = Counter(one.model for one in self._fleet.instances.values())
        for model in self._fleet.models.values():
            if instances[model.spec.served_by] < 2:
                continue
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
            Neighbour(one.id, batch, node.promised.of(one.id))
            for one in self._fleet.instances_on(node)
            if one is not instance and one.loaded and not one.arriving and (batch := one.batch)
            if self._fleet.profile_of(one) is not None
        ]
