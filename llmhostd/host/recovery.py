"""How does nothing get lost?

A request moves as its tokens (ServerlessLLM §5): when its worker dies, or its node gives it back, it is placed again
with all that it has streamed. People first, in order of arrival. A model that takes its worker down several times in a
row, without a token in between, is quarantined; the others go on.
"""

from dataclasses import dataclass

from llmhostd.domain.actions import HostAction, QuarantineModel, Refusal
from llmhostd.domain.ids import ModelName
from llmhostd.domain.reports import LoadFailed, NodeDown, NodeUp, RequestReturned
from llmhostd.host.best_effort import BestEffort
from llmhostd.host.fleet import Fleet, LiveRequest, ModelRecord
from llmhostd.host.instance import Instance
from llmhostd.host.placement import Placement
from llmhostd.host.queue import ArrivalQueue
from llmhostd.host.refusal import refuse
from llmhostd.host.routing import Offer, Routing
from llmhostd.memory.ledger import Ledger


@dataclass(frozen=True, slots=True)
class RecoveryPolicy:
    """When to stop trying."""

    crashes_until_quarantine: int = 3
    """A model that was computing or loading at so many worker deaths in a row is quarantined."""
    load_retry_s: float = 30.0
    """After a failed load nobody tries that model again for this long."""


class Recovery:
    """Places again what lost its place."""

    def __init__(
        self, fleet: Fleet, routing: Routing, placement: Placement, best_effort: BestEffort, policy: RecoveryPolicy
    ) -> None:
        self._fleet = fleet
        self._routing = routing
        self._placement = placement
        self._best_effort = best_effort
        self._policy = policy
        self.stranded = ArrivalQueue()
        """Latency-sensitive requests without a place."""

    def node_up(self, event: NodeUp, now: float) -> list[HostAction]:
        """Use a node; whoever waits for one is placed when the step ends."""
        node = self._fleet.nodes[event.node_id]
        actions: list[HostAction] = []
        if node.up:
            because = "its worker says that it is new"
            actions = self.node_down(NodeDown(node_id=event.node_id, suspect=None, because=because), now)
        node.promised, node.held = Ledger(event.memory_bytes), Ledger(event.memory_bytes)
        node.load.busy_until_s = now
        node.up = True
        node.caveats = event.caveats
        return actions

    def node_down(self, event: NodeDown, now: float) -> list[HostAction]:  # noqa: ARG002 - as the others
        """Forget everything on a node but its requests."""
        node = self._fleet.nodes[event.node_id]
        suspect = self._fleet.instances.get(event.suspect) if event.suspect else None
        model = self._fleet.models.get(suspect.model) if suspect else None
        node.up = False
        node.restarts += 1
        node.recent.clear()
        for instance in list(self._fleet.instances_on(node)):
            self.gone(instance)
        return self._suspect(model, event.because) if model else []

    def load_failed(self, event: LoadFailed, now: float) -> list[HostAction]:
        """Give up an instance that could not be loaded; its requests go to another one, or must be refused."""
        instance = self._fleet.instances.get(event.instance_id)
        if instance is None:
            return []
        model = self._fleet.models[instance.model]
        model.broken, model.broken_until_s = event.error, now + self._policy.load_retry_s
        self.gone(instance)
        if next(self._fleet.instances_of(instance.model), None) is not None:
            return []
        return self.give_up(instance.model, f"loading {instance.model} failed: {event.error}")

    def returned(self, event: RequestReturned, now: float) -> list[HostAction]:
        """Take a request back; it is placed again when somebody gave something back, or at the next tick."""
        request = self._fleet.requests.get(event.request_id)
        if request is None or not request.submitted:
            return []
        actions = self._placement.withdraw(request, now, event.because)
        self._strand(request)
        return actions

    def gone(self, instance: Instance) -> None:
        """Forget an instance that its node no longer has."""
        for request in self._fleet.remove(instance):
            self._strand(request)

    def place_stranded(self, now: float) -> list[HostAction]:
        """Find places, in order of arrival: one that passes validation, or else the least bad one."""
        actions: list[HostAction] = []
        up = self._fleet.nodes_up()
        for request in self.stranded if up else ():
            model = self._fleet.models[request.load.shape.model]
            answer = self._routing.ask(model, request.load, now, up)
            offer = answer.accepted or min(answer.rejected, key=_ttft_s, default=None)
            if offer:
                self.stranded.discard(request)
                actions += self._placement.place(request, offer, now)
            elif answer.never_fits and len(up) == len(self._fleet.nodes):
                because = f"{model.spec.name} no longer fits into the memory of this box"
                actions += self._refuse(request, Refusal.TOO_LARGE, because)
        return actions

    def give_up(self, model: ModelName, because: str) -> list[HostAction]:
        """Refuse everybody who waits for a model in a queue of the host."""
        waiting = [each for each in self.stranded if each.load.shape.model == model] + self._best_effort.of(model)
        return [action for request in waiting for action in self._refuse(request, Refusal.MODEL_BROKEN, because)]

    def _suspect(self, model: ModelRecord, because: str) -> list[HostAction]:
        model.crashes_in_a_row += 1
        if model.crashes_in_a_row < self._policy.crashes_until_quarantine:
            return []
        times = model.crashes_in_a_row
        name = model.spec.name
        model.quarantined = f"{name} took its worker down {times} times in a row: {because}"
        quarantine = QuarantineModel(model=name, because=model.quarantined)
        return [quarantine, *self.give_up(name, model.quarantined)]

    def _strand(self, request: LiveRequest) -> None:
        if request.load.latency_sensitive:
            self.stranded.add(request)
        else:
            self._best_effort.add(request)

    def _refuse(self, request: LiveRequest, refusal: Refusal, because: str) -> list[HostAction]:
        self.stranded.discard(request)
        self._best_effort.discard(request)
        del self._fleet.requests[request.load.shape.id]
        return [refuse(request.load.shape, refusal, because, 0.0)]


def _ttft_s(offer: Offer) -> float:
    return offer.verdict.expected_ttft_s
