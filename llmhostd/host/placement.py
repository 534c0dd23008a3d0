"""What happens when a request gets a place?"""

from llmhostd.domain.actions import HostAction
from llmhostd.domain.commands import RecallRequest
from llmhostd.domain.model import ModelState
from llmhostd.host.fleet import Fleet
from llmhostd.host.instance import Instance
from llmhostd.host.offers import Offer
from llmhostd.host.request import LiveRequest
from llmhostd.host.residency import Residency


class Placement:
    """Assigns requests to instances; their nodes are told as soon as they may be."""

    def __init__(self, fleet: Fleet, residency: Residency) -> None:
        self._fleet = fleet
        self._residency = residency

    def place(self, request: LiveRequest, offer: Offer, now: float, why: str = "") -> list[HostAction]:
        """Take an offer, after what must move for it. `why` it needs a place now, if that must be said."""
        instance = offer.instance
        name = request.load.shape.id
        actions: list[HostAction] = []
        for each in offer.moves:
            neighbour = self._fleet.requests[each.request_id]
            actions += self.move(neighbour, each.offer, now, f"{instance.id} grows for {name}")
        request.because = f"{why}; {offer.because}" if why else offer.because
        request.load.shape = offer.request.shape
        if instance.id not in self._fleet.instances:
            self._fleet.add(instance)
        self._fleet.assign(request, instance, now)
        return actions + self._residency.settle(instance, now, f"{instance.model} needs memory for {name}")

    def load_ahead(self, instance: Instance, now: float, because: str) -> list[HostAction]:
        """Load an instance that nobody has a place on yet, unless it loads already."""
        if instance.id in self._fleet.instances:
            return []
        self._fleet.add(instance)
        return self._residency.settle(instance, now, because)

    def move(self, request: LiveRequest, offer: Offer, now: float, because: str) -> list[HostAction]:
        """Let a request go on elsewhere, as its tokens (ServerlessLLM §5): at once, whatever its node still says."""
        actions = self._recall(request, because)
        source = self._fleet.leave(request)
        actions += self.place(request, offer, now, because)
        return actions + self.vacated(source, now, because)

    def send_back(self, request: LiveRequest, now: float, because: str) -> list[HostAction]:
        """Let a request leave its node and wait in the host for another place."""
        actions = self._recall(request, because)
        source = self._fleet.leave(request)
        self._fleet.waiting.add(request)
        return actions + self.vacated(source, now, because)

    def withdraw(self, request: LiveRequest, now: float, because: str) -> list[HostAction]:
        """Take a request's place away; what it held serves others."""
        return self.vacated(self._fleet.withdraw(request), now, because)

    def _recall(self, request: LiveRequest, because: str) -> list[HostAction]:
        """Tell the node that was told to run it, if any was."""
        if request.instance_id is None or not request.submitted:
            return []
        node_id = self._fleet.instances[request.instance_id].node_id
        return [RecallRequest(node_id=node_id, request_id=request.load.shape.id, because=because)]

    def vacated(self, instance: Instance | None, now: float, because: str) -> list[HostAction]:
        """Bring in line what a request has left."""
        if instance is None:
            return []
        instance.last_used_s = now
        if instance.state is ModelState.COLD and not instance.load.requests and not instance.arriving:
            self._fleet.remove(instance)
            return self._residency.proceed(self._fleet.node_of(instance), now)
        return self._residency.settle(instance, now, because)

    def end(self, request: LiveRequest, now: float, because: str) -> list[HostAction]:
        """Forget a request, wherever it is."""
        del self._fleet.requests[request.load.shape.id]
        self._fleet.waiting.discard(request)
        return self.withdraw(request, now, because)
