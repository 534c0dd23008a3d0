"""Who waits in the host for a place, and in which order?"""

from bisect import bisect_left, insort
from collections.abc import Iterator

from llmhostd.domain.ids import ModelName
from llmhostd.host.request import LiveRequest


def _order(request: LiveRequest) -> tuple[float, str]:
    return request.load.shape.arrived_s, request.load.shape.id


class ArrivalQueue:
    """Requests in order of arrival, whenever they came back; ids order those who arrived together."""

    __slots__ = ("_requests",)

    def __init__(self) -> None:
        self._requests: list[LiveRequest] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[LiveRequest]:
        return iter(list(self._requests))

    def __contains__(self, request: LiveRequest) -> bool:
        return self._position(request) is not None

    def first(self) -> LiveRequest | None:
        """Who has waited longest."""
        return self._requests[0] if self._requests else None

    def add(self, request: LiveRequest) -> None:
        """Let a request wait."""
        insort(self._requests, request, key=_order)

    def discard(self, request: LiveRequest) -> bool:
        """Take a request out; says whether it was in."""
        position = self._position(request)
        if position is None:
            return False
        del self._requests[position]
        return True

    def _position(self, request: LiveRequest) -> int | None:
        position = bisect_left(self._requests, _order(request), key=_order)
        found = position < len(self._requests) and self._requests[position] is request
        return position if found else None


class Waiting:
    """Every live request without a place is in exactly one of three."""

    def __init__(self) -> None:
        self.stranded = ArrivalQueue()
        """People who lost their place."""
        self.newcomers = ArrivalQueue()
        """People who never had one, and may hope for it."""
        self.best_effort: dict[ModelName, ArrivalQueue] = {}
        """Work that nobody waits for; no queue is empty."""

    def __len__(self) -> int:
        return len(self.stranded) + len(self.newcomers) + sum(map(len, self.best_effort.values()))

    def add(self, request: LiveRequest) -> None:
        """Let a request wait for its next place."""
        if request.load.latency_sensitive:
            (self.newcomers if request.hope else self.stranded).add(request)
        else:
            self.best_effort.setdefault(request.load.shape.model, ArrivalQueue()).add(request)

    def discard(self, request: LiveRequest) -> None:
        """Take a request out, wherever it is."""
        self.stranded.discard(request)
        self.newcomers.discard(request)
        queue = self.best_effort.get(request.load.shape.model)
        if queue is not None and queue.discard(request) and not queue:
            del self.best_effort[request.load.shape.model]

    def places_of(self, request: LiveRequest) -> int:
        """How often a request is in here; for checking that it is once at most."""
        queue = self.best_effort.get(request.load.shape.model, ())
        return (request in self.stranded) + (request in self.newcomers) + (request in queue)

    def of(self, model: ModelName) -> list[LiveRequest]:
        """Who waits for a model, people first."""
        people = [each for each in (*self.stranded, *self.newcomers) if each.load.shape.model == model]
        return [*people, *self.best_effort.get(model, ())]
