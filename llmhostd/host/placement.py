"""What happens when a request gets a place?"""

from llmhostd.domain.actions import HostAction
from llmhostd.domain.model import ModelState
from llmhostd.host.fleet import Fleet
from llmhostd.host.request import LiveRequest
from llmhostd.host.residency import Residency
from llmhostd.host.routing import Offer


class Placement:
    """Assigns requests to instances; their nodes are told as soon as they may be."""

    def __init__(self, fleet: Fleet, residency: Residency) -> None:
        self._fleet = fleet
        self._residency = residency

    def place(self, request: LiveRequest, offer: Offer, now: float) -> list[HostAction]:
        """Take an offer."""
        instance = offer.instance
        request.because = offer.because
        request.load.shape = offer.request.shape
        if instance.id not in self._fleet.instances:
            self._fleet.add(instance)
        self._fleet.assign(request, instance, now)
        return self._residency.settle(instance, now, f"{instance.model} needs memory for {request.load.shape.id}")

    def withdraw(self, request: LiveRequest, now: float, because: str) -> list[HostAction]:
        """Take a request's place away; what it held serves others."""
        instance = self._fleet.withdraw(request)
        if instance is None:
            return []
        instance.last_used_s = now
        if instance.state is ModelState.COLD and not instance.load.requests:
            self._fleet.remove(instance)
            return self._residency.proceed(self._fleet.node_of(instance), now)
        return self._residency.settle(instance, now, because)

    def end(self, request: LiveRequest, now: float, because: str) -> list[HostAction]:
        """Forget a request, wherever it is."""
        del self._fleet.requests[request.load.shape.id]
        self._fleet.waiting.discard(request)
        return self.withdraw(request, now, because)
