"""What becomes of best-effort calls that the end of an earlier daemon cut off?

They are taken up in order of arrival, from the tokens they had, and go before whoever arrives now. Nobody waits on a
connection for them any more, so their answers are kept.
"""

import asyncio
import logging
import time

import msgspec

from llmhostd.api.calls import Call, read_call
from llmhostd.api.errors import problem_of
from llmhostd.api.respond import whole_body
from llmhostd.api.service import Endpoint
from llmhostd.daemon.answer import Answer
from llmhostd.daemon.decisions import DecisionFeed
from llmhostd.daemon.shelf import Shelf
from llmhostd.daemon.submission import Submission
from llmhostd.state.flex import FlexCall

log = logging.getLogger(__name__)


class Adoption:
    """Takes up what was cut off."""

    def __init__(self, shelf: Shelf, submission: Submission, feed: DecisionFeed) -> None:
        self._shelf = shelf
        self._submission = submission
        self._feed = feed
        self._finishing: set[asyncio.Task[None]] = set()

    async def take_up(self, call_ids: list[str]) -> None:
        """Take up these calls, in this order; for ever, as a part of the daemon."""
        if call_ids:
            log.info("best effort: %d calls of an earlier run go on", len(call_ids))
        for call_id in call_ids:
            call = await self._shelf.find(call_id)
            if call is not None and call.status is None:
                await self._begin(call)
        await asyncio.Event().wait()

    async def _begin(self, call: FlexCall) -> None:
        """Have it run again, or keep why it cannot."""
        # As long ago as the calendar says: whoever arrives now is behind it. Never in the future.
        arrived_s = time.monotonic() - max(0.0, time.time() - call.arrived_at)
        try:
            read = read_call(Endpoint(call.endpoint), call.body, call.id, int(call.arrived_at))
            answer = await self._submission.take_up(read.ask, call, arrived_s)
        except Exception as error:  # noqa: BLE001 - one table decides what each becomes
            self._keep_error(call.id, error)
        else:
            task = asyncio.create_task(self._finish(call.id, read, answer))
            self._finishing.add(task)
            task.add_done_callback(self._finishing.discard)

    async def _finish(self, call_id: str, call: Call, answer: Answer) -> None:
        try:
            body = await whole_body(answer, call.render)
        except Exception as error:  # noqa: BLE001 - as above
            self._keep_error(call_id, error)
        else:
            self._shelf.end(call_id, 200, body)

    def _keep_error(self, call_id: str, error: Exception) -> None:
        if self._shelf.stopped:  # not over: the next run takes it up again
            return
        problem = problem_of(error)
        because = f"it was cut off by the end of an earlier run, and cannot go on: {problem.body.error.message}"
        log.warning("best effort: %s: %s", call_id, because)
        self._feed.note("BestEffortLost", call_id, because)
        self._shelf.end(call_id, problem.status, msgspec.json.encode(problem.body))
