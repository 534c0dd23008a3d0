"""Who waits for an answer now?"""

import asyncio

from llmhostd.api.service import RefusedError
from llmhostd.daemon.live import LiveRequest
from llmhostd.daemon.tally import Tally
from llmhostd.domain.actions import Refusal, RefuseRequest
from llmhostd.domain.errors import EngineError
from llmhostd.domain.ids import RequestId
from llmhostd.domain.reports import IterationReported, RequestFailed
from llmhostd.domain.request import FinishReason, Tier
from llmhostd.state.last_run import RunNote


class LiveRequests:
    """Every request from its arrival to its end, by id, in order of arrival."""

    def __init__(self, tally: Tally, note: RunNote) -> None:
        self._by_id: dict[RequestId, LiveRequest] = {}
        self._tally = tally
        self._note = note
        self._people = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, request_id: RequestId) -> LiveRequest | None:
        """Return it while it lives."""
        return self._by_id.get(request_id)

    def add(self, request: LiveRequest) -> None:
        """Let it live."""
        self._by_id[request.shape.id] = request
        self._empty.clear()
        self._tally.arrived()
        self._count_people(request, 1)

    def deliver(self, report: IterationReported, now: float) -> list[RequestId]:
        """Hand new text to those who wait. Return requests that a stop string ended: their node does not know yet."""
        stopped = []
        for row in report.rows:
            request = self._by_id.get(row.request_id)
            if request is None or request.told != (report.node_id, report.instance_id):  # it left or moved meanwhile
                continue
            finish = request.advance(row, report.started_s, now)
            if finish is not None:
                self._drop(row.request_id)
                self._tally.ended(request, finish)
                if row.finish is None:
                    stopped.append(row.request_id)
        return stopped

    def refuse(self, action: RefuseRequest) -> None:
        """Tell a caller that it is not served, and what to expect."""
        request = self._drop(action.request_id)
        if request is None:
            return
        self._tally.turned_away(request.shape.model, action.refusal.value)
        request.answer.fail(
            RefusedError(
                action.refusal,
                action.because,
                retry_after_s=action.retry_after_s,
                expected_ttft_s=action.expected_ttft_s,
            )
        )

    def fail(self, report: RequestFailed) -> None:
        """Tell a caller that an engine failed at its request, unless it has moved to another node meanwhile."""
        request = self._by_id.get(report.request_id)
        if request is None or request.told is None or request.told[0] != report.node_id:
            return
        self._drop(report.request_id)
        self._tally.broke(request)
        request.answer.fail(EngineError(report.error))

    def cancel(self, request_id: RequestId) -> bool:
        """Forget a request that nobody waits for any more. Return whether it lived."""
        request = self._drop(request_id)
        if request is not None:
            self._tally.ended(request, FinishReason.CANCELLED)
        return request is not None

    async def wait_for_none(self) -> None:
        """Wait until nobody is served."""
        await self._empty.wait()

    def fail_all(self, because: str) -> None:
        """Tell everybody that the daemon stops now; best effort is not over by that (`daemon.shelf`)."""
        for request_id, request in list(self._by_id.items()):
            self._drop(request_id)
            kept = request.shape.tier is Tier.BEST_EFFORT
            if not kept:
                self._tally.broke(request)
            goes_on = "; the request is kept and goes on when it starts again: see /api/v1/requests" if kept else ""
            request.answer.fail(RefusedError(Refusal.UNAVAILABLE, because + goes_on, retry_after_s=5.0))

    def _drop(self, request_id: RequestId) -> LiveRequest | None:
        request = self._by_id.pop(request_id, None)
        if request is not None:
            self._count_people(request, -1)
        if not self._by_id:
            self._empty.set()
        return request

    def _count_people(self, request: LiveRequest, more: int) -> None:
        """Best effort is counted where it is kept."""
        if request.shape.tier is Tier.LATENCY_SENSITIVE:
            self._people += more
            self._note.people(self._people)
