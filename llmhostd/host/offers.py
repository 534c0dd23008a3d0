"""What could each instance do for a request?

Memory is asked before time: a look at the ledger costs nothing, a shadow validation plays a node forward.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from llmhostd.compute.iteration_plan import SchedulingPolicy
from llmhostd.compute.shadow_validation import ShadowPolicy, Verdict, validate
from llmhostd.compute.under_way import when_free
from llmhostd.compute.workload import NodeLoad, RequestLoad
from llmhostd.consolidation.bin_packing import NEARNESS, PackingPolicy, Standing, fit, preference, resting
from llmhostd.domain.ids import InstanceId, RequestId
from llmhostd.domain.model import ModelState
from llmhostd.host.budget import Budget
from llmhostd.host.families import computes, may_serve
from llmhostd.host.fleet import Fleet, ModelRecord, NodeRecord
from llmhostd.host.instance import Instance
from llmhostd.host.residency import Residency
from llmhostd.host.what_if import AS_IT_IS, WhatIf


@dataclass(frozen=True, slots=True)
class RoutingPolicy:
    """How requests find their instance."""

    cold_start_grace: bool = True
    """A request that must wait for a load gets the expected load time on top of its TTFT SLO (SLINFER §IX-A)."""
    start_slack_s: float = 1.0
    """A new instance goes to the node that it fits best into, as long as it starts at most this much later there than
    where it starts soonest; ServerlessLLM (§6.3) always takes that one (0)."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What one instance could do for a request."""

    instance: Instance
    request: RequestLoad
    """The request as it would be there: with its grace."""
    verdict: Verdict
    moves: tuple["Move", ...] = ()
    """What must go elsewhere for it."""
    preempted: tuple[InstanceId, ...] = ()
    """Those whose requests these are."""

    @property
    def because(self) -> str:
        """Why this instance."""
        batch = len(self.instance.load.requests)
        where = "new instance" if self.instance.state is ModelState.COLD else f"{self.instance.state}, batch {batch}"
        grows = f" grows in the place of {', '.join(self.preempted)}" if self.preempted else ""
        return f"{where}{grows}: {self.verdict.because}"


@dataclass(frozen=True, slots=True)
class Move:
    """Where a request goes that must leave its instance."""

    request_id: RequestId
    offer: Offer


class Offers:
    """Asks instances; changes nothing."""

    def __init__(
        self,
        fleet: Fleet,
        budget: Budget,
        residency: Residency,
        policy: RoutingPolicy,
        packing: PackingPolicy,
        shadow: ShadowPolicy,
        scheduling: SchedulingPolicy,
    ) -> None:
        self._fleet = fleet
        self._budget = budget
        self._residency = residency
        self._policy = policy
        self._packing = packing
        self._shadow = shadow
        self._scheduling = scheduling

    def existing(
        self, model: ModelRecord, request: RequestLoad, nodes: Sequence[NodeRecord], what_if: WhatIf = AS_IT_IS
    ) -> list[Instance]:
        """List a model's instances on some nodes, the one to be filled first before others."""
        names = [node.spec.id for node in nodes if self._open(node, request)]
        mine = [one for one in self.all_of(model, what_if) if one.node_id in names and not one.closed]
        taking = [one for one in mine if self._has_slot(one, what_if)]
        taking.sort(key=lambda one: preference(self.standing(one, what_if), self._packing))
        outdated = [one for one in taking if not self._fleet.current(one)]
        if not outdated:
            return taking
        # Whoever is to be loaded anew gets no more than it must, but is better than waiting for a load.
        current = [one for one in taking if one not in outdated]
        loaded, coming = [one for one in current if one.loaded], [one for one in current if not one.loaded]
        return [*loaded, *outdated, *coming]

    def resting(self, instances: Sequence[Instance]) -> list[Instance]:
        """Those that hold a GPU for nobody."""
        return [one for one in instances if resting(self.standing(one, AS_IT_IS), self._packing)]

    def drafts(
        self,
        model: ModelRecord,
        request: RequestLoad,
        now: float,
        nodes: Sequence[NodeRecord],
        what_if: WhatIf = AS_IT_IS,
    ) -> list[Instance]:
        """Make a new instance on every node that has none, best fit first of those where it starts soon enough.

        While it is asked what if, a node gets one new instance at most: the next would have to wait for its load.
        """
        if self._fleet.unloadable(model, now):
            return []
        taken = [one.node_id for one in (*self.all_of(model, what_if), *what_if.drafts.values()) if not one.closed]
        may_compute = [node for node in nodes if computes(node.spec, model.spec)]
        free = [node for node in may_compute if node.spec.id not in taken and self._open(node, request)]
        drafts = [self._residency.draft(model, node, now) for node in free]
        open_to_it = [one for one in drafts if self._has_slot(one, what_if)]
        soonest_s = min((one.load.ready_at_s for one in open_to_it), default=now)
        return sorted(open_to_it, key=lambda one: self._fit(one, one.load.ready_at_s - soonest_s))

    def shortage_bytes(self, instance: Instance, request: RequestLoad, what_if: WhatIf = AS_IT_IS) -> int:
        """What its node lacks in memory, even if all who can give way did; 0 or less: it fits."""
        node = self._fleet.node_of(instance)
        joining = what_if.joining(node, self._fleet.instances_on(node), (instance, request))
        return self._budget.shortage_together(joining)

    def offer(
        self,
        instance: Instance,
        request: RequestLoad,
        now: float,
        what_if: WhatIf = AS_IT_IS,
        *,
        excused_s: float = 0.0,
        moving: bool = False,
    ) -> Offer:
        """Play its node forward with the request on it.

        `excused_s`: added to its grace, like the time until the instance is loaded. `moving`: it was promised its time
        where it is, and gets no more.
        """
        node = self._fleet.node_of(instance)
        ready_at_s = self._residency.ready_at_s(instance, request, now)
        grace_s = excused_s + ready_at_s - now
        newcomer = request
        if grace_s > request.shape.grace_s and self._policy.cold_start_grace and not moving:
            newcomer = replace(request, shape=msgspec.structs.replace(request.shape, grace_s=grace_s))
        coming = self._with_arriving(node, now, but=request.shape.id)
        there = when_free(coming, now, self._scheduling, loading_slowdown=self._shadow.loading_slowdown)
        grown_at_s = max(ready_at_s, now + self._budget.growth_s(instance, request))
        picture = what_if.picture(there, instance, grown_at_s)
        verdict = validate(picture, instance.id, newcomer, now, self._shadow, self._scheduling)
        return Offer(instance, newcomer, verdict)

    def offer_to_follow(
        self, instance: Instance, request: RequestLoad, now: float, computed_tokens: int | None = None
    ) -> Offer:
        """Play its node forward with a stream that comes there once so much of its context is computed.

        None: all but the last token. Asked is whether it could go on there as it does now, with as much headroom; one
        that is late where it is, as if it were due after the usual time.
        """
        follower = self._follower(instance, request, now)
        if computed_tokens is not None:
            follower.computed_tokens = computed_tokens
        return replace(self.offer(instance, follower, now, moving=True), request=request)

    def _follower(self, instance: Instance, request: RequestLoad, now: float) -> RequestLoad:
        """Picture a stream as it comes to an instance; until that is ready, it goes on where it is."""
        ready_at_s = self._residency.ready_at_s(instance, request, now)
        later_s = max(ready_at_s - now, ready_at_s + request.shape.slo.tpot_s - request.deadline_s)
        return _caught_up(request, later_s)

    def _with_arriving(self, node: NodeRecord, now: float, but: RequestId) -> NodeLoad:
        """Picture a node as if the streams that are on their way there had arrived, all but one."""
        loads = dict(node.load.instances)
        for one in self._fleet.instances_on(node) if self._fleet.migrations else ():
            arriving = {key: self._follower(one, load, now) for key, load in one.arriving.items() if key != but}
            if arriving:
                loads[one.id] = replace(one.load, requests={**one.load.requests, **arriving})
        return NodeLoad(node.load.busy_until_s, loads)

    def all_of(self, model: ModelRecord, what_if: WhatIf = AS_IT_IS) -> list[Instance]:
        """All that may take requests of a model, in order of loading."""
        new = (one for one in what_if.drafts.values() if one.model == model.spec.served_by)
        mine = (*self._fleet.instances_of(model.spec.name), *new)
        return [one for one in mine if one.state in NEARNESS and may_serve(one.shape, model.spec)]

    def _open(self, node: NodeRecord, request: RequestLoad) -> bool:
        """Whether a node may take it: not where an earlier stay of it has not ended yet, nor where it is staged."""
        name = request.shape.id
        migration = self._fleet.migrations.get(name)
        staged = migration is not None and migration.destination in node.load.instances
        return not staged and name not in node.leaving and name not in node.dropping

    def _has_slot(self, instance: Instance, what_if: WhatIf) -> bool:
        """Whether its node may serve one more instance, if it serves this one not yet."""
        slots = self._packing.instances_per_node
        if not slots or what_if.batch(instance):
            return True
        others = self._fleet.instances_on(self._fleet.node_of(instance))
        return sum(what_if.batch(one) > 0 for one in others if one is not instance) < slots

    def standing(self, instance: Instance, what_if: WhatIf = AS_IT_IS) -> Standing:
        """How an instance looks to whoever fills the box."""
        kind = self._fleet.node_of(instance).spec.kind
        return Standing(instance.id, kind, instance.state, what_if.batch(instance), instance.last_used_s)

    def _fit(self, draft: Instance, later_s: float) -> tuple[bool, bool, bool, int]:
        node = self._fleet.node_of(draft)
        left_bytes = node.promised.free_bytes - sum(self._budget.least_bytes(draft))
        other_kind, lacks, size = fit(node.spec.kind, left_bytes, self._packing)
        return other_kind, lacks, later_s > self._policy.start_slack_s, size


def _caught_up(request: RequestLoad, later_s: float) -> RequestLoad:
    """Copy a stream as if its context were computed but for the last token, and all that it did had been later."""
    shape = request.shape
    first_s, last_s = request.said_s
    return replace(
        request,
        shape=msgspec.structs.replace(shape, arrived_s=shape.arrived_s + later_s),
        computed_tokens=request.context_tokens - 1,
        first_token_s=None if first_s is None else first_s + later_s,
        last_token_s=None if last_s is None else last_s + later_s,
    )
