"""When does work run that nobody waits for?

It waits here, in order of arrival, and goes to a node when the host keeps no person waiting there, memory is free (or
held by the idle), and the node has not enough of it already. On the node it runs in what is left (OmniServe §3.3.2).
"""

from dataclasses import dataclass

from llmhostd.domain.actions import HostAction
from llmhostd.domain.ids import ModelName
from llmhostd.host.fleet import Fleet, NodeRecord
from llmhostd.host.placement import Placement
from llmhostd.host.routing import Routing


@dataclass(frozen=True, slots=True)
class BestEffortPolicy:
    """How much of it a node is given at once."""

    most_per_node: int = 32
    """Best-effort requests on a node at most; the rest waits in the host, where it holds no memory."""


class BestEffort:
    """Serves the queues of `Waiting.best_effort`, whoever waits longest first."""

    def __init__(self, fleet: Fleet, routing: Routing, placement: Placement, policy: BestEffortPolicy) -> None:
        self._fleet = fleet
        self._routing = routing
        self._placement = placement
        self._policy = policy

    def dispatch(self, now: float) -> list[HostAction]:
        """Send to nodes what they may have now; a model whose first request finds no place lets others pass."""
        actions: list[HostAction] = []
        stuck: dict[ModelName, None] = {}
        queues = self._fleet.waiting.best_effort
        while len(stuck) < len(queues):
            nodes = [node for node in self._fleet.nodes_free() if self._open(node)]
            if not nodes:
                break
            heads = [queue.first() for model, queue in queues.items() if model not in stuck]
            request = min((head for head in heads if head), key=lambda head: head.load.shape.arrived_s)
            name = request.load.shape.model
            nodes = [node for node in nodes if request.may_go_to(node.spec.id, now)]
            answer = self._routing.ask(self._fleet.models[name], request.load, now, nodes)
            if answer.accepted is None:
                stuck[name] = None
                continue
            self._fleet.waiting.discard(request)
            actions += self._placement.place(request, answer.accepted, now)
        return actions

    def _open(self, node: NodeRecord) -> bool:
        """Whether a node may have more: nobody is kept waiting by the host there, and it has not enough already."""
        running = 0
        for instance in self._fleet.instances_on(node):
            for request_id, load in instance.load.requests.items():
                if not load.latency_sensitive:
                    running += 1
                elif not self._fleet.requests[request_id].submitted:
                    return False
        return running < self._policy.most_per_node
