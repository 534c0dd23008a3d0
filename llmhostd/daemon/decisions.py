"""Who follows what is decided, and what was decided lately?"""

import asyncio
import logging
import time
from collections import deque

from llmhostd.api.service import RefusedError
from llmhostd.domain.actions import GiveUpPlacement, HostAction, QuarantineModel, Refusal, RefuseRequest
from llmhostd.domain.commands import CancelRequest, KeepWeights, ReleaseWeights, StageRequest, SubmitRequest
from llmhostd.domain.ids import NodeId
from llmhostd.domain.reports import IterationReported, LoadFailed, NodeDown, RequestFailed, RequestReturned
from llmhostd.domain.snapshot import Decision

log = logging.getLogger("llmhostd.decisions")

KEPT = 100
"""Decisions that a new follower sees first."""
_QUEUED = 1000
"""Decisions kept for a follower that is slow; older ones are dropped."""
_DIGITS = 19
"""Of a number that fits 64 bits."""
_SAMPLE_S = 0.1
"""At most one iteration per node is told in this time."""

Told = HostAction | IterationReported | LoadFailed | NodeDown | RequestFailed | RequestReturned
_ROUTINE = (SubmitRequest, StageRequest, CancelRequest, IterationReported, RefuseRequest)
"""Too many for the journal of a busy box; the events tell them all the same."""


class Follower:
    """One reader. Nobody waits for it."""

    def __init__(self, feed: "DecisionFeed", after: int) -> None:
        self._feed = feed
        self._queue: deque[Decision] = deque((one for one in feed.recent if one.sequence > after), maxlen=_QUEUED)
        self._changed = asyncio.Event()
        self._closed = False

    def event_id(self, decision: Decision) -> str:
        """Name a decision in its run."""
        return f"{self._feed.run}-{decision.sequence}"

    def put(self, decision: Decision) -> None:
        """Queue a decision."""
        self._queue.append(decision)
        self._changed.set()

    async def decisions(self) -> list[Decision]:
        """Wait for what comes next; none once closed."""
        while not self._queue and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        taken = list(self._queue)
        self._queue.clear()
        return [] if self._closed else taken

    def close(self) -> None:
        """End it; whoever waits in `decisions` goes on."""
        self._closed = True
        self._changed.set()
        self._feed.followers.pop(self, None)


class DecisionFeed:
    """Numbers decisions, keeps the last ones and hands them to all followers."""

    def __init__(self, most_followers: int) -> None:
        self.recent: deque[Decision] = deque(maxlen=KEPT)
        self.followers: dict[Follower, None] = {}
        self._most_followers = most_followers
        self.run = f"{time.time_ns():x}"
        """Of the daemon: numbers of another run say nothing about this one."""
        self._next = 1
        self._sampled_s: dict[NodeId, float] = {}

    def follow(self, after: str = "") -> Follower:
        """Begin behind an event of this run, else with all that is kept. Raises RefusedError when too many follow."""
        if len(self.followers) >= self._most_followers:
            raise RefusedError(
                Refusal.UNAVAILABLE, f"{self._most_followers} followers of events already", retry_after_s=5.0
            )
        run, _, sequence = after.partition("-")
        seen = run == self.run and sequence.isdecimal() and len(sequence) < _DIGITS
        follower = Follower(self, int(sequence) if seen else 0)
        self.followers[follower] = None
        return follower

    @property
    def last(self) -> int:
        """The number of the last decision."""
        return self._next - 1

    def close(self) -> None:
        """End all followers: the daemon stops."""
        for follower in list(self.followers):
            follower.close()

    def tell(self, told: Told) -> None:
        """Note an action, or an event that has a reason; iterations are sampled."""
        if isinstance(told, IterationReported):
            if told.started_s - self._sampled_s.get(told.node_id, -1.0) < _SAMPLE_S:
                return
            self._sampled_s[told.node_id] = told.started_s
        kind, subject = type(told).__name__, _subject(told)
        because = told.error if isinstance(told, LoadFailed | RequestFailed) else told.because
        self.note(kind, subject, because, getattr(told, "node_id", None))
        level = logging.DEBUG if isinstance(told, _ROUTINE) else logging.INFO
        log.log(level, "%s %s: %s", kind, subject, because)

    def note(self, kind: str, subject: str, because: str, node_id: NodeId | None = None) -> None:
        """Tell followers what no mind decided."""
        decision = Decision(
            sequence=self._next, at_unix_s=time.time(), kind=kind, subject=subject, node_id=node_id, because=because
        )
        self._next += 1
        self.recent.append(decision)
        for follower in self.followers:
            follower.put(decision)


def _subject(told: Told) -> str:
    if isinstance(told, SubmitRequest | StageRequest):
        return told.request.id
    if isinstance(told, QuarantineModel | GiveUpPlacement | KeepWeights | ReleaseWeights):
        return told.model
    if isinstance(told, NodeDown):
        return told.node_id
    return str(getattr(told, "request_id", "") or getattr(told, "instance_id", ""))
