"""Is a request served, made to wait, or refused at once?

Somebody who waits is admitted only with a place, memory and a passed shadow validation; once admitted, never refused
unless the model itself breaks. Best effort is never refused for lateness.
"""

from llmhostd.compute.deadlines import DeadlinePolicy
from llmhostd.compute.workload import RequestLoad
from llmhostd.domain.actions import HostAction, Refusal
from llmhostd.domain.request import RequestShape
from llmhostd.host.fleet import Fleet
from llmhostd.host.placement import Placement
from llmhostd.host.refusal import RefusalPolicy, refuse, refuse_for, too_large
from llmhostd.host.request import LiveRequest
from llmhostd.host.routing import Routing


class Admission:
    """Answers every arrival in the same step."""

    def __init__(
        self,
        fleet: Fleet,
        routing: Routing,
        placement: Placement,
        policy: RefusalPolicy,
        deadlines: DeadlinePolicy,
    ) -> None:
        self._fleet = fleet
        self._routing = routing
        self._placement = placement
        self._policy = policy
        self._deadlines = deadlines

    def arrived(self, shape: RequestShape, now: float) -> list[HostAction]:
        """Take a new request in, or refuse it."""
        unserved = self._unserved(shape, now)
        if unserved:
            return unserved
        request = LiveRequest(RequestLoad(shape, tokens_out=shape.tokens_out, deadlines=self._deadlines))
        model = self._fleet.models[shape.model]
        if self._routing.never_fits(model, request.load, now):
            return [too_large(shape)]
        if not request.load.latency_sensitive:
            self._fleet.requests[shape.id] = request
            self._fleet.waiting.add(request)
            return []
        answer = self._routing.ask(model, request.load, now, self._fleet.nodes_open())
        if answer.accepted:
            self._fleet.requests[shape.id] = request
            return self._placement.place(request, answer.accepted, now)
        return [refuse_for(answer, shape, self._policy)]

    def _unserved(self, shape: RequestShape, now: float) -> list[HostAction]:
        """Refuse what no search for an instance could help."""
        model = self._fleet.models.get(shape.model)
        if model is None or model.removed:
            return [refuse(shape, Refusal.MODEL_BROKEN, f"no model {shape.model} is known", 0.0)]
        if why := model.unloadable(now):
            retry_s = 0.0 if model.quarantined else model.broken_until_s - now
            return [refuse(shape, Refusal.MODEL_BROKEN, why, retry_s)]
        if not self._fleet.nodes_open():
            why = "every node that is up is being drained" if self._fleet.nodes_up() else "no node is up"
            return [refuse(shape, Refusal.UNAVAILABLE, why, self._policy.node_down_retry_s)]
        return []
