"""What becomes of a request that an operator wants elsewhere?

A stream moves live; where as many as may are on their way already, it follows when they have arrived. What has said
nothing yet moves at once, if its first token is in time there; so does best effort. Who could not be served there as
promised stays, and the operator is told why; so does a stream that is wanted where it still is. The latest wish holds:
a stream that is on its way elsewhere goes there instead, if it could be served there.
"""

from llmhostd.domain.actions import DeclineMove, HostAction
from llmhostd.domain.events import MoveAsked
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

    def go_on(self, now: float) -> list[HostAction]:
        """Let those follow that may begin now."""
        actions: list[HostAction] = []
        for name, node_id in list(self._fleet.following.items()):
            request, node = self._fleet.requests.get(name), self._fleet.nodes[node_id]
            if request is None or self._is_there(request, node):
                del self._fleet.following[name]
            else:
                actions += self._move(request, node, now)
        return actions

    def _move(self, request: LiveRequest, node: NodeRecord, now: float) -> list[HostAction]:
        name = request.load.shape.id
        followed = self._fleet.following.pop(name, None)
        if self._is_there(request, node):
            return self._stay(request, node, followed, now)
        if self._is_coming(request, node):
            return []
        why_not = self._hindrance(request, node)
        if not why_not and self._must_wait(request, node, now):
            self._fleet.following[name] = node.spec.id
            return []
        if not why_not and self._migrating.may_move_live(request):
            place = self._migrating.destination(request, now, [node])
            if not isinstance(place, str):
                turned = self._migrating.call_off(name, now, f"an operator wants it on {node.spec.id} instead")
                return [*turned, *self._migrating.begin(request, place, now, ASKED)]
            why_not = place
        elif not why_not:
            offer = self._routing.another(request.load, now, [node])
            if offer:
                return self._placement.move(request, offer, now, ASKED)
            why_not = f"{node.spec.id} could not serve it in time, or has no room"
        return [self._decline(name, node.spec.id, f"{why_not}{self._as_before(name, node, followed)}")]

    def _as_before(self, name: RequestId, node: NodeRecord, followed: NodeId | None) -> str:
        """Let an earlier wish hold where the latest cannot; says what becomes of it."""
        if followed is not None and followed != node.spec.id:
            self._fleet.following[name] = followed
            return f"; it is still to follow to {followed}"
        migration = self._fleet.migrations.get(name)
        return f"; it goes on to {migration.destination}" if migration else ""

    def _stay(self, request: LiveRequest, node: NodeRecord, followed: NodeId | None, now: float) -> list[HostAction]:
        """Let a stream stay where it is; if it is on its way elsewhere, call that off, but not against a drain."""
        name = request.load.shape.id
        migration = self._fleet.migrations.get(name)
        if migration is None:
            because = f"it is there, and no longer to follow to {followed}" if followed else "it is there already"
            return [self._decline(name, node.spec.id, because)]
        if node.draining:
            return [self._decline(name, node.spec.id, f"{node.spec.id} is being drained")]
        called_off = self._migrating.call_off(name, now, f"an operator wants it to stay on {node.spec.id}")
        because = f"it is there, and no longer on its way to {migration.destination}"
        return [*called_off, self._decline(name, node.spec.id, because)]

    def _is_there(self, request: LiveRequest, node: NodeRecord) -> bool:
        at = request.instance_id
        return at is not None and self._fleet.instances[at].node_id == node.spec.id

    def _is_coming(self, request: LiveRequest, node: NodeRecord) -> bool:
        migration = self._fleet.migrations.get(request.load.shape.id)
        return migration is not None and migration.destination in node.load.instances

    def _must_wait(self, request: LiveRequest, node: NodeRecord, now: float) -> bool:
        """Whether it has only just come where it is, or left there where it is wanted, or others arrive before it."""
        name = request.load.shape.id
        if name in node.leaving or name in node.dropping or not request.may_go_to(node.spec.id, now):
            return True
        live = self._migrating.may_move_live(request)
        return self._migrating.full(node) if live else self._migrating.may_begin_soon(request)

    def _hindrance(self, request: LiveRequest, node: NodeRecord) -> str:
        """Say why nobody need be asked; empty: somebody must be."""
        if request.instance_id is None:
            return "it waits for a place"
        if not node.up or node.draining:
            return f"{node.spec.id} is {'being drained' if node.up else 'down'}"
        return ""

    def _decline(self, request_id: RequestId, node_id: NodeId, because: str) -> HostAction:
        return DeclineMove(request_id=request_id, node_id=node_id, because=because)
