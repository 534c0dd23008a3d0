"""Which instance runs a request?

Existing instances first, resident before warm before loading, the largest batch first (SLINFER §VIII-B), then a new
one. The first that has the memory and passes shadow validation (§VI-C) takes it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from llmhostd.compute.iteration_plan import SchedulingPolicy
from llmhostd.compute.shadow_validation import ShadowPolicy, Verdict, validate
from llmhostd.compute.workload import NodeLoad, RequestLoad
from llmhostd.domain.model import ModelState
from llmhostd.host.budget import Budget
from llmhostd.host.fleet import Fleet, ModelRecord, NodeRecord
from llmhostd.host.instance import Instance
from llmhostd.host.residency import Residency

NEARNESS = {ModelState.RESIDENT: 0, ModelState.WARM: 1, ModelState.LOADING: 2, ModelState.COLD: 3}
"""Who is asked first. COLD: waiting for memory. Others are not asked."""


@dataclass(frozen=True, slots=True)
class RoutingPolicy:
    """How requests find their instance."""

    cold_start_grace: bool = True
    """A request that must wait for a load gets the expected load time on top of its TTFT SLO (SLINFER §IX-A)."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What one instance could do for a request."""

    instance: Instance
    request: RequestLoad
    """The request as it would be there: with its grace."""
    verdict: Verdict

    @property
    def because(self) -> str:
        """Why this instance."""
        batch = len(self.instance.load.requests)
        where = "new instance" if self.instance.state is ModelState.COLD else f"{self.instance.state}, batch {batch}"
        return f"{where}: {self.verdict.because}"


@dataclass(frozen=True, slots=True)
class Answer:
    """Everything that the search for an instance found out."""

    accepted: Offer | None
    rejected: tuple[Offer, ...]
    """Those with the memory but not the time, in the order in which they were asked."""
    short_bytes: int | None
    """The least that any node lacked in memory; None when none did."""


class Routing:
    """Looks for instances; changes nothing."""

    def __init__(
        self,
        fleet: Fleet,
        budget: Budget,
        residency: Residency,
        policy: RoutingPolicy,
        shadow: ShadowPolicy,
        scheduling: SchedulingPolicy,
    ) -> None:
        self._fleet = fleet
        self._budget = budget
        self._residency = residency
        self._policy = policy
        self._shadow = shadow
        self._scheduling = scheduling

    def ask(self, model: ModelRecord, request: RequestLoad, now: float, nodes: Sequence[NodeRecord]) -> Answer:
        """Ask one instance after the other on some nodes that are up, until one accepts."""
        rejected: list[Offer] = []
        short_bytes: list[int] = []
        for instance in self._candidates(model, request, now, nodes):
            lacks_bytes = self._budget.shortage_bytes(instance, request)
            if lacks_bytes > 0:
                short_bytes.append(lacks_bytes)
                continue
            offer = self._offer(instance, request, now)
            if offer.verdict.accepted:
                return Answer(offer, tuple(rejected), min(short_bytes, default=None))
            rejected.append(offer)
        return Answer(None, tuple(rejected), min(short_bytes, default=None))

    def never_fits(self, model: ModelRecord, request: RequestLoad, now: float) -> bool:
        """Whether every node is too small for a request, up or not, even if it were empty."""
        drafts = (self._residency.draft(model, node, now) for node in self._fleet.nodes.values())
        return all(self._budget.never_fits(draft, request) for draft in drafts)

    def _candidates(
        self, model: ModelRecord, request: RequestLoad, now: float, nodes: Sequence[NodeRecord]
    ) -> Iterator[Instance]:
        """Existing instances by nearness and batch, then a new one on every node that has none.

        Not where an earlier stay of the request has not ended yet.
        """
        mine = [
            each
            for each in self._fleet.instances_of(model.spec.name)
            if each.state in NEARNESS and each.shape == model.spec.shape
        ]
        taken = [each.node_id for each in mine]
        allowed = [node.spec.id for node in nodes if request.shape.id not in node.leaving]
        asked = [each for each in mine if each.node_id in allowed]
        yield from sorted(asked, key=lambda each: (NEARNESS[each.state], -len(each.load.requests)))
        if not model.unloadable(now):
            free = [node for node in nodes if node.spec.id in allowed and node.spec.id not in taken]
            drafts = [self._residency.draft(model, node, now) for node in free]
            yield from sorted(drafts, key=self._fit)

    def _fit(self, draft: Instance) -> tuple[bool, int]:
        """Best fit: where least is left over; where others must give way only after that, the roomiest first."""
        left_bytes = self._fleet.node_of(draft).promised.free_bytes - sum(self._budget.need_bytes(draft))
        return left_bytes < 0, abs(left_bytes)

    def _offer(self, instance: Instance, request: RequestLoad, now: float) -> Offer:
        """Play its node forward with the request on it."""
        node = self._fleet.node_of(instance)
        ready_at_s = self._residency.ready_at_s(instance, request, now)
        loading_s = ready_at_s - now
        newcomer = request
        if loading_s > request.shape.grace_s and self._policy.cold_start_grace:
            newcomer = replace(request, shape=msgspec.structs.replace(request.shape, grace_s=loading_s))
        there = replace(instance.load, ready_at_s=ready_at_s)
        picture = NodeLoad(node.load.busy_until_s, {**node.load.instances, instance.id: there})
        verdict = validate(picture, instance.id, newcomer, now, self._shadow, self._scheduling)
        return Offer(instance, newcomer, verdict)
