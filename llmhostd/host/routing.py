"""Which instance runs a request?

Existing instances first; then one that may take the place of smaller neighbours; then a new one (SLINFER §V, §VIII).
The first that has the memory and passes shadow validation (§VI-C) takes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from llmhostd.compute.workload import RequestLoad
from llmhostd.domain.hardware import NodeKind
from llmhostd.domain.ids import ModelName, NodeId
from llmhostd.host.budget import Budget
from llmhostd.host.consolidator import Consolidator
from llmhostd.host.families import computes
from llmhostd.host.fleet import Fleet, ModelRecord, NodeRecord
from llmhostd.host.instance import Instance
from llmhostd.host.offers import Offer, Offers


@dataclass(frozen=True, slots=True)
class Answer:
    """Everything that the search for an instance found out."""

    accepted: Offer | None
    rejected: tuple[Offer, ...]
    """Those with the memory but not the time, in the order in which they were asked."""
    short_bytes: int | None
    """The least that any node lacked in memory; None when none did."""
    short_on: tuple[NodeId, ...] = ()
    """Nodes that lacked memory."""
    yields_to: ModelName | None = None
    """There would be memory; another model comes first for it (`host.precedence`)."""


@dataclass(slots=True)
class _Search:
    """One search: whom it asked, and what each lacked."""

    offers: Offers
    request: RequestLoad
    now: float
    excused_s: float
    rejected: list[Offer] = field(default_factory=list)
    short_bytes: list[int] = field(default_factory=list)
    hindered: list[tuple[Instance, int]] = field(default_factory=list)
    """Everybody who could not take it, and the bytes that each lacked; 0: it lacked time."""

    def first_of(self, instances: Sequence[Instance]) -> Offer | None:
        """Ask one after the other until one accepts."""
        for instance in instances:
            lacks_bytes = self.offers.shortage_bytes(instance, self.request)
            if lacks_bytes > 0:
                self.short_bytes.append(lacks_bytes)
                self.hindered.append((instance, lacks_bytes))
                continue
            offer = self.offers.offer(instance, self.request, self.now, excused_s=self.excused_s)
            if offer.verdict.accepted:
                return offer
            self.rejected.append(offer)
            self.hindered.append((instance, 0))
        return None

    def answer(self, accepted: Offer | None) -> Answer:
        short_on = tuple(instance.node_id for instance, lacks_bytes in self.hindered if lacks_bytes > 0)
        return Answer(accepted, tuple(self.rejected), min(self.short_bytes, default=None), short_on)


class Routing:
    """Looks for instances; changes nothing."""

    def __init__(self, fleet: Fleet, budget: Budget, offers: Offers, consolidator: Consolidator) -> None:
        self._fleet = fleet
        self._budget = budget
        self._offers = offers
        self._consolidator = consolidator

    def ask(
        self,
        model: ModelRecord,
        request: RequestLoad,
        now: float,
        nodes: Sequence[NodeRecord],
        excused_s: float = 0.0,
    ) -> Answer:
        """Ask one instance after the other on some nodes that are up, until one accepts.

        `excused_s`: how long it waited already for what it is not to blame for; added to its grace.
        """
        search = _Search(self._offers, request, now, excused_s)
        existing = self._offers.existing(model, request, nodes)
        idle = self._offers.resting(existing) if request.latency_sensitive else []
        found = search.first_of([one for one in existing if one not in idle])
        if found is None and idle:
            found = self._on_cpu(model, search, nodes) or search.first_of(idle)
        if found is None:
            found = self._consolidator.make_room(request, search.hindered, now, nodes)
        if found is None:
            drafts = self._offers.drafts(model, request, now, nodes)
            found = search.first_of(drafts)
            if found is None:
                new = [one for one in search.hindered if any(one[0] is each for each in drafts)]
                found = self._consolidator.join_twins(request, new, now, nodes)
        return search.answer(found)

    def _on_cpu(self, model: ModelRecord, search: _Search, nodes: Sequence[NodeRecord]) -> Offer | None:
        """Look for a new instance on a CPU node that needs no grace for its load, in memory that is free."""
        cpus = [node for node in nodes if node.spec.kind is NodeKind.CPU]
        for draft in self._offers.drafts(model, search.request, search.now, cpus):
            if self._budget.others_must_give_way(draft, search.request):
                continue
            offer = self._offers.offer(draft, search.request, search.now, excused_s=search.excused_s)
            if offer.verdict.accepted and offer.verdict.expected_ttft_s <= search.request.shape.slo.ttft_s:
                return offer
        return None

    def another(self, request: RequestLoad, now: float, nodes: Sequence[NodeRecord]) -> Offer | None:
        """Find a place on some nodes for a request that has one elsewhere, whose promise stays what it is."""
        return self._consolidator.rehouse(request, now, nodes)

    def nearest(
        self, model: ModelRecord, request: RequestLoad, now: float, nodes: Sequence[NodeRecord]
    ) -> NodeRecord | None:
        """Find the node that lacks the least memory for a request; None: it fits nowhere, even if all were empty."""
        large = [node for node in nodes if not self.never_fits(model, request, now, [node])]
        drafts = (self._fleet.draft(model, node, now) for node in large)
        lacking = [self._budget.shortage_bytes(draft, request) for draft in drafts]
        return large[lacking.index(min(lacking))] if large else None

    def never_fits(
        self,
        model: ModelRecord,
        request: RequestLoad,
        now: float,
        nodes: Sequence[NodeRecord] | None = None,
        *,
        at_most: bool = False,
    ) -> bool:
        """Whether every node, up or not, or each of some nodes, is too small for a request even if it were empty.

        `at_most`: and had as much memory as it ever had.
        """
        looked_at = self._fleet.nodes.values() if nodes is None else nodes
        drafts = (self._fleet.draft(model, node, now) for node in looked_at if computes(node.spec, model.spec))
        return all(self._budget.never_fits(draft, request, at_most=at_most) for draft in drafts)
