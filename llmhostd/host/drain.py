"""How does a node become empty without anybody noticing?

Nothing new goes there. Streams move elsewhere live, where they could go on as they do now; what has not begun to say
anything moves at once where it passes validation, best effort goes back to its queue. That is tried again whenever
something changed; the rest ends there. What is idle is unloaded. A node stays like that through a restart of its
worker, until it is given back.
"""

from llmhostd.domain.actions import HostAction
from llmhostd.domain.events import DrainAsked, DrainEnded
from llmhostd.domain.ids import ModelName
from llmhostd.host.fleet import Fleet, NodeRecord
from llmhostd.host.migrating import Migrating
from llmhostd.host.placement import Placement
from llmhostd.host.request import LiveRequest
from llmhostd.host.residency import Residency
from llmhostd.host.routing import Routing


class Drain:
    """Empties nodes."""

    def __init__(
        self, fleet: Fleet, routing: Routing, placement: Placement, residency: Residency, migrating: Migrating
    ) -> None:
        self._fleet = fleet
        self._migrating = migrating
        self._routing = routing
        self._placement = placement
        self._residency = residency

    def asked(self, event: DrainAsked, now: float) -> list[HostAction]:  # noqa: ARG002 - `go_on` ends every step
        """Let nothing new go to a node."""
        node = self._fleet.nodes.get(event.node_id)
        if node is not None:
            node.draining = True
        return []

    def ended(self, event: DrainEnded, now: float) -> list[HostAction]:  # noqa: ARG002 - as `asked`
        """Use a node again."""
        node = self._fleet.nodes.get(event.node_id)
        if node is not None:
            node.draining = False
        return []

    def go_on(self, now: float) -> list[HostAction]:
        """Move and unload on draining nodes what can be moved and unloaded now."""
        return [
            action
            for node in self._fleet.nodes_up()
            if node.draining
            for action in [*self._move_away(node, now), *self._unload_idle(node, now)]
        ]

    def _move_away(self, node: NodeRecord, now: float) -> list[HostAction]:
        """Move one after the other, the least to compute again first, on the box as those before have left it."""
        actions: list[HostAction] = []
        stuck: dict[ModelName, None] = {}
        here = [request for one in self._fleet.instances_on(node) for request in one.load.requests.values()]
        for load in sorted(here, key=lambda one: one.context_tokens):
            request = self._fleet.requests[load.shape.id]
            if load.shape.model in stuck or not self._could_go(request, now):
                continue
            moved = self._move(request, node, now)
            if not moved:
                # A longer one of its model would fare no better, and would cost a validation.
                stuck[load.shape.model] = None
            actions += moved
        return actions

    def _could_go(self, request: LiveRequest, now: float) -> bool:
        """Whether another node could ever hold it, and it is not on its way, nor has just come."""
        if request.load.shape.id in self._fleet.migrations or self._migrating.may_begin_soon(request):
            return False
        model = self._fleet.models[request.load.shape.model]
        return not self._routing.never_fits(model, request.load, now, self._fleet.nodes_open())

    def _move(self, request: LiveRequest, node: NodeRecord, now: float) -> list[HostAction]:
        because = f"{node.spec.id} is being drained"
        if self._migrating.may_begin(request):
            place = self._migrating.destination(request, now, self._fleet.nodes_open())
            return [] if isinstance(place, str) else self._migrating.begin(request, place, now, because)
        if request.load.latency_sensitive:
            offer = self._routing.another(request.load, now, self._fleet.nodes_open())
            return self._placement.move(request, offer, now, because) if offer else []
        return self._placement.send_back(request, now, because)

    def _unload_idle(self, node: NodeRecord, now: float) -> list[HostAction]:
        because = f"{node.spec.id} is being drained"
        idle = [one for one in self._fleet.instances_on(node) if one.idle]
        return [action for one in idle for action in self._residency.unload(one, now, because)]
