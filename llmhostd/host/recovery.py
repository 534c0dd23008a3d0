"""How does nothing get lost?

A request moves as its tokens (ServerlessLLM §5): when its worker dies, or its node gives it back, it is placed again
with all that it has streamed. People first, in order of arrival. A model that takes its worker down several times in a
row, without a token in between, is quarantined; the others go on.
"""

from dataclasses import dataclass

from llmhostd.domain.actions import HostAction, QuarantineModel, Refusal, RefuseRequest
from llmhostd.domain.ids import ModelName
from llmhostd.domain.reports import LoadFailed, NodeDown, NodeUp, RequestReturned
from llmhostd.host.fleet import Fleet, ModelRecord
from llmhostd.host.instance import Instance
from llmhostd.host.offers import Offer
from llmhostd.host.placement import Placement
from llmhostd.host.refusal import RefusalPolicy, refuse, too_large
from llmhostd.host.request import LiveRequest
from llmhostd.host.routing import Routing
from llmhostd.memory.ledger import Ledger


@dataclass(frozen=True, slots=True)
class RecoveryPolicy:
    """When to stop trying."""

    crashes_until_quarantine: int = 3
    """A model that was computing or loading at so many worker deaths in a row is quarantined."""
    starving_s: float = 5.0
    """Whoever lost its place and is late by more than this gets the next that comes free: a node is kept for it."""
    load_retry_s: float = 30.0
    """After a failed load nobody tries that model again for this long."""
    return_pause_s: float = 0.05
    """A request that a node gave back is not sent there again for this long, and for twice as long after each further
    time without a token in between; other nodes may have it at once."""
    most_return_pause_s: float = 5.0
    """The longest of these pauses."""


class Recovery:
    """Places again what lost its place."""

    def __init__(
        self, fleet: Fleet, routing: Routing, placement: Placement, policy: RecoveryPolicy, refusal: RefusalPolicy
    ) -> None:
        self._fleet = fleet
        self._routing = routing
        self._placement = placement
        self._policy = policy
        self._refusal = refusal

    def node_up(self, event: NodeUp, now: float) -> list[HostAction]:
        """Use a node; whoever waits for one is placed when the step ends."""
        node = self._fleet.nodes[event.node_id]
        actions: list[HostAction] = []
        if node.up:
            because = "its worker says that it is new"
            actions = self.node_down(NodeDown(node_id=event.node_id, suspect=None, because=because), now)
        node.promised, node.held = Ledger(event.memory_bytes), Ledger(event.memory_bytes)
        node.most_bytes = max(node.most_bytes, event.memory_bytes)
        node.load.busy_until_s = now
        node.up = True
        if node.down_since_s is not None:
            took_s = now - node.down_since_s
            # Slower counts at once: whoever crashes again and again comes back later each time.
            node.restart_s = max(took_s, (took_s + (node.restart_s or took_s)) / 2)
            node.down_since_s = None
        node.caveats = event.caveats
        node.memory = None
        return actions + self.refuse_too_large(now)

    def node_down(self, event: NodeDown, now: float) -> list[HostAction]:
        """Forget everything on a node but its requests."""
        node = self._fleet.nodes[event.node_id]
        suspect = self._fleet.instances.get(event.suspect) if event.suspect else None
        model = self._fleet.models.get(suspect.model) if suspect else None
        if node.up:
            node.down_since_s = now
        node.up = False
        node.restarts += 1
        node.recent.clear()
        node.leaving.clear()
        node.dropping.clear()
        actions: list[HostAction] = self._suspect(model, event) if model else []
        for instance in list(self._fleet.instances_on(node)):
            actions += self.gone(instance, now)
        return actions

    def load_failed(self, event: LoadFailed, now: float) -> list[HostAction]:
        """Give up an instance that could not be loaded; its requests go to another one, or must be refused.

        What nobody waits for does wait if there was only no memory for it: that comes back.
        """
        instance = self._fleet.instances.get(event.instance_id)
        if instance is None:
            return []
        model = self._fleet.models[instance.model]
        model.broken = f"loading {instance.model} failed: {event.error}"
        model.broken_until_s = now + self._policy.load_retry_s
        return self.gone(instance, now, people_only=event.lacks_memory)

    def returned(self, event: RequestReturned, now: float) -> list[HostAction]:
        """Take a request back, for another node at once, or for the same one after a pause."""
        request = self._fleet.requests.get(event.request_id)
        if request is None or not request.submitted:
            return []
        if request.told is None or request.told[0] != event.node_id:
            return []
        self._left_alone(request, event, now)
        actions = self._placement.withdraw(request, now, event.because)
        self._fleet.waiting.add(request)
        return actions + self.place_stranded(now)

    def dropped(self, event: RequestReturned, now: float) -> None:
        """Know that a node did not keep what it was sent ahead of a stream; unless it was told not to."""
        request, node = self._fleet.requests.get(event.request_id), self._fleet.nodes[event.node_id]
        if request is not None and event.request_id not in node.dropping:
            self._left_alone(request, event, now)

    def _left_alone(self, request: LiveRequest, event: RequestReturned, now: float) -> None:
        request.gave_back(event.node_id, now, self._policy.return_pause_s, self._policy.most_return_pause_s)

    def gone(self, instance: Instance, now: float, *, people_only: bool = False) -> list[HostAction]:
        """Forget an instance that its node no longer has; refuse its requests if no other can ever take them.

        `people_only`: what nobody waits for need not be refused.
        """
        for request in self._fleet.remove(instance):
            self._fleet.waiting.add(request)
        why = self._fleet.models[instance.model].unloadable(now)
        hopeless = why and next(self._fleet.instances_of(instance.model), None) is None
        return self.give_up(instance.model, why, people_only=people_only) if hopeless else []

    def place_stranded(self, now: float) -> list[HostAction]:
        """Find places, in order of arrival: one that passes validation, or else the least bad one."""
        actions: list[HostAction] = []
        up, may_be_given = self._fleet.nodes_up(), self._fleet.nodes_open()
        for request in self._fleet.waiting.stranded if up else ():
            model = self._fleet.models[request.load.shape.model]
            # What no other node could hold ends on one that is being drained.
            nodes = up if self._routing.never_fits(model, request.load, now, may_be_given) else may_be_given
            nodes = [node for node in nodes if node.kept_for in (None, request.load.shape.id)]
            nodes = [node for node in nodes if request.may_go_to(node.spec.id, now)]
            answer = self._routing.ask(model, request.load, now, nodes)
            offer = answer.accepted or min(answer.rejected, key=_ttft_s, default=None)
            if offer:
                self._fleet.waiting.discard(request)
                actions += self._placement.place(request, offer, now)
        self._keep_a_node(now)
        return actions

    def _keep_a_node(self, now: float) -> None:
        """Let nothing new go to a node that somebody needs who has waited too long; those who run there will end."""
        for node in self._fleet.nodes.values():
            node.kept_for = None
        longest = next(iter(self._fleet.waiting.stranded), None)
        if longest is None or longest.load.headroom_s(now) > -self._policy.starving_s:
            return
        model = self._fleet.models[longest.load.shape.model]
        nearest = self._routing.nearest(model, longest.load, now, self._fleet.nodes_open())
        if nearest and not self._fleet.unloadable(model, now):
            nearest.kept_for = longest.load.shape.id

    def refuse_too_large(self, now: float) -> list[HostAction]:
        """Refuse who waits for what fits nowhere any more: a node came back smaller, or a measured model is larger."""
        return [
            action
            for name, model in self._fleet.models.items()
            for request in self._fleet.waiting.of(name)
            if self._routing.never_fits(model, request.load, now)
            for action in self._refuse(request, self._too_large(model, request, now))
        ]

    def give_up(self, model: ModelName, because: str, *, people_only: bool = False) -> list[HostAction]:
        """Refuse everybody, or all people, who wait for a model, or an adapter of it, in a queue of the host."""
        return [
            action
            for name in self._fleet.family(model)
            for request in self._fleet.waiting.of(name)
            if request.load.latency_sensitive or not people_only
            for action in self._refuse(request, refuse(request.load.shape, Refusal.MODEL_BROKEN, because, 0.0))
        ]

    def _suspect(self, model: ModelRecord, event: NodeDown) -> list[HostAction]:
        name = model.spec.name
        model.crashes_in_a_row += 1
        times = model.crashes_in_a_row
        if event.file_changed:
            model.quarantined = event.because
        elif times >= self._policy.crashes_until_quarantine:
            model.quarantined = f"{name} took its worker down {times} times in a row: {event.because}"
        else:
            return []
        return [QuarantineModel(model=name, because=model.quarantined)]

    def _too_large(self, model: ModelRecord, request: LiveRequest, now: float) -> RefuseRequest:
        for_good = self._routing.never_fits(model, request.load, now, at_most=True)
        return too_large(request.load.shape, self._refusal, for_good=for_good)

    def _refuse(self, request: LiveRequest, refusal: RefuseRequest) -> list[HostAction]:
        self._fleet.waiting.discard(request)
        del self._fleet.requests[request.load.shape.id]
        return [refusal]


def _ttft_s(offer: Offer) -> float:
    return offer.verdict.expected_ttft_s
