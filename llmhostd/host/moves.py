"""What becomes of a request that an operator wants elsewhere?

A stream moves live. What has said nothing yet moves at once, if its first token is in time there; so does best effort.
Who could not be served there as promised stays, and the operator is told why.
"""

from llmhostd.domain.actions import DeclineMove, HostAction
from llmhostd.domain.events import ModelMoveAsked, MoveAsked
from llmhostd.domain.ids import NodeId, RequestId
from llmhostd.host.fleet import Fleet, NodeRecord
from llmhostd.host.migrating import Migrating
from llmhostd.host.placement import Placement
from llmhostd.host.request import LiveRequest
from llmhostd.host.routing import Routing

ASKED = "an operator asked for it"


class Moves:
    """Does what `llmhostd move` asks for, as far as promises allow."""

    def __init__(self, fleet: Fleet, routing: Routing, placement: Placement, migrating: Migrating) -> None:
        self._fleet = fleet
        self._routing = routing
        self._placement = placement
        self._migrating = migrating

    def asked(self, event: MoveAsked, now: float) -> list[HostAction]:
        """Move one request."""
        request, node = self._fleet.requests.get(event.request_id), self._fleet.nodes.get(event.node_id)
        if request is None or node is None:
            return [self._decline(event.request_id, event.node_id, "it, or that node, is not known")]
        return self._move(request, node, now)

    def model_asked(self, event: ModelMoveAsked, now: float) -> list[HostAction]:
        """Move all requests of a model, in the order in which they run."""
        node = self._fleet.nodes.get(event.node_id)
        if node is None:
            return []
        requests = [
            self._fleet.requests[name]
            for one in self._fleet.instances.values()
            if one.node_id != event.node_id
            for name, load in one.load.requests.items()
            if load.shape.model == event.name
        ]
        return [action for request in requests for action in self._move(request, node, now)]

    def _move(self, request: LiveRequest, node: NodeRecord, now: float) -> list[HostAction]:
        why_not = self._hindrance(request, node)
        if not why_not and self._migrating.may_begin(request):
            place = self._migrating.destination(request, now, [node])
            if not isinstance(place, str):
                return self._migrating.begin(request, place, now, ASKED)
            why_not = place
        elif not why_not:
            offer = self._routing.another(request.load, now, [node])
            if offer:
                return self._placement.move(request, offer, now, ASKED)
            why_not = f"{node.spec.id} could not serve it in time, or has no room"
        return [self._decline(request.load.shape.id, node.spec.id, why_not)]

    def _hindrance(self, request: LiveRequest, node: NodeRecord) -> str:
        """Say why nobody need be asked; empty: somebody must be."""
        name = request.load.shape.id
        if request.instance_id is None:
            return "it waits for a place"
        if self._fleet.instances[request.instance_id].node_id == node.spec.id:
            return "it is there already"
        if name in self._fleet.migrations:
            return f"it is on its way to {self._fleet.migrations[name].destination}"
        if self._migrating.may_begin_soon(request):
            return "it has only just come where it is; it can move again in a moment"
        if not node.up or node.draining:
            return f"{node.spec.id} is {'being drained' if node.up else 'down'}"
        return ""

    def _decline(self, request_id: RequestId, node_id: NodeId, because: str) -> HostAction:
        return DeclineMove(request_id=request_id, node_id=node_id, because=because)
