"""Who leaves when a node has less memory than its instances need?

Pools give up what they do not use by themselves. Then nothing more comes, the idle go, then best effort, then people:
from one instance after the other, beginning where everybody can best wait, the longest headroom first (SLINFER §VII-D).
They go on elsewhere as their tokens, or wait for a place.
"""

from llmhostd.domain.actions import HostAction
from llmhostd.domain.reports import NodeMemoryChanged
from llmhostd.host.budget import Budget
from llmhostd.host.fleet import Fleet, NodeRecord
from llmhostd.host.migrating import Migrating
from llmhostd.host.placement import Placement
from llmhostd.host.request import LiveRequest
from llmhostd.host.residency import Residency


class Relief:
    """Brings nodes back within their memory."""

    def __init__(
        self, fleet: Fleet, budget: Budget, placement: Placement, residency: Residency, migrating: Migrating
    ) -> None:
        self._fleet = fleet
        self._migrating = migrating
        self._budget = budget
        self._placement = placement
        self._residency = residency

    def memory_changed(self, event: NodeMemoryChanged, now: float) -> list[HostAction]:
        """Follow what a node may hold."""
        node = self._fleet.nodes[event.node_id]
        node.promised.capacity_bytes = node.held.capacity_bytes = event.memory_bytes
        node.most_bytes = max(node.most_bytes, event.memory_bytes)
        if not node.up:
            return []
        actions: list[HostAction] = []
        if self._budget.over_bytes(node) > 0:
            actions += self._migrating.give_up_on(node, now, event.because)
        while self._budget.over_bytes(node) > 0:
            actions += self._residency.give_way(node, now, event.because)
            if self._budget.over_bytes(node) <= 0 or (request := self._who_leaves(node)) is None:
                break
            kind = "it has the longest headroom" if request.load.latency_sensitive else "it is best effort"
            actions += self._placement.send_back(request, now, f"{event.because}; {kind}")
        return actions

    def _who_leaves(self, node: NodeRecord) -> LiveRequest | None:
        """Find the next request to go; None: nothing is assigned to the node any more."""
        instances = [one for one in self._fleet.instances_on(node) if one.load.requests]
        best_effort = [load for one in instances for load in one.load.requests.values() if not load.latency_sensitive]
        if best_effort:
            # Whoever waited longest is served first, so the last to come leaves first.
            load = max(best_effort, key=lambda one: (one.shape.arrived_s, one.shape.id))
        elif instances:
            there = max(instances, key=lambda one: min(each.deadline_s for each in one.load.requests.values()))
            load = max(there.load.requests.values(), key=lambda one: one.deadline_s)
        else:
            return None
        return self._fleet.requests[load.shape.id]
