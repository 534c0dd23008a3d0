"""Who waits in the host, in order of arrival?"""

from bisect import bisect_left, insort
from collections.abc import Iterator

from llmhostd.host.fleet import LiveRequest


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
