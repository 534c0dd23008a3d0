"""What happens when something happens? Event, mind, actions: the one place where they meet."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

from llmhostd.daemon.decisions import DecisionFeed
from llmhostd.daemon.mind import Mind
from llmhostd.daemon.requests import LiveRequests
from llmhostd.domain.actions import HostAction
from llmhostd.domain.events import ClockTicked, HostEvent, RequestCancelled
from llmhostd.domain.reports import (
    IterationReported,
    LoadFailed,
    NodeDown,
    RequestFailed,
    RequestReturned,
)

log = logging.getLogger(__name__)

_BUSY_TICK_S = 0.25
_IDLE_TICK_S = 1.0
"""While instances are loaded and nobody is served, only keep-alives pass."""


class HostLoop:
    """Drives the host mind. Everything runs on the event loop's thread; nothing here waits."""

    def __init__(
        self,
        mind: Mind,
        requests: LiveRequests,
        feed: DecisionFeed,
        execute: Callable[[HostAction], None],
    ) -> None:
        self._mind = mind
        self._requests = requests
        self._feed = feed
        self._execute = execute
        self._events: deque[HostEvent] = deque()
        self._stepping = False
        self._stirred = asyncio.Event()

    def hear(self, event: HostEvent) -> None:
        """Let the mind decide and do what it says, before this returns.

        What happens meanwhile (an action that fails at once) is heard after it, in order.
        """
        self._events.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events:
                self._step(self._events.popleft())
        finally:
            self._stepping = False
        self._stirred.set()

    async def tick(self) -> None:
        """Let time pass while anything is loaded or anybody waits; sleep deeply otherwise."""
        while True:
            if not self._requests and not self._mind.snapshot(time.monotonic()).instances:
                self._stirred.clear()
                await self._stirred.wait()
            await asyncio.sleep(_BUSY_TICK_S if self._requests else _IDLE_TICK_S)
            self.hear(ClockTicked())

    def _step(self, event: HostEvent) -> None:
        now = time.monotonic()
        if isinstance(event, IterationReported):
            # Text first: who waits for it should not wait for the decisions.
            self._events.extend(RequestCancelled(request_id=one) for one in self._requests.deliver(event, now))
        elif isinstance(event, RequestFailed):
            self._requests.fail(event)
        if isinstance(event, IterationReported | LoadFailed | NodeDown | RequestFailed | RequestReturned):
            self._feed.tell(event)
        for action in self._mind.step(event, now):
            self._feed.tell(action)
            self._execute(action)
