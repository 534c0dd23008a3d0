"""What of best-effort calls is on disk, so that the end of the daemon loses none?

A call is on disk before it is submitted, its tokens follow now and again, and it is forgotten when its answer has left
or its caller gave it up. Whatever ends the daemon (a crash, `kill -9`, a stop in good order) leaves the rest there.
"""

import asyncio
import sqlite3
import time
from collections.abc import Sequence
from functools import partial

import msgspec

from llmhostd.api.service import CallRecord, Endpoint, KeptCall, RefusedError
from llmhostd.daemon.answer import Answer
from llmhostd.daemon.live import LiveRequest
from llmhostd.daemon.records import Records
from llmhostd.domain.actions import Refusal
from llmhostd.domain.errors import UnknownNameError
from llmhostd.domain.ids import ModelName
from llmhostd.state.flex import ChoiceProgress, FlexCall
from llmhostd.state.policy import FlexPolicy

_ON_ITS_WAY_S = 1.0
"""An answer that was given to a connection is with the kernel by then."""


class Shelf:
    """Best-effort calls under way, and on disk."""

    def __init__(self, records: Records, policy: FlexPolicy) -> None:
        self._records = records
        self._policy = policy
        self._running: dict[str, tuple[Answer, Sequence[LiveRequest]]] = {}
        self._saved: dict[tuple[str, int], ChoiceProgress] = {}
        self._leaving: dict[str, asyncio.TimerHandle] = {}
        """Calls whose answers have just left."""
        self._stirred = asyncio.Event()
        self.stopped = False
        """Whether the daemon ends: what is on disk stays as it is."""

    async def put(self, record: CallRecord, model: ModelName, choices: Sequence[ChoiceProgress]) -> None:
        """Return once a call is on disk. Raises RefusedError if it cannot be written: then it is not accepted."""
        call = FlexCall(
            id=record.id, caller_id=record.caller_id, endpoint=record.endpoint, body=record.body, model=model,
            arrived_at=time.time(), choices=tuple(choices),
        )  # fmt: skip
        try:
            await self._records.done(partial(self._records.flex.put, call))
        except sqlite3.Error as error:
            raise RefusedError(
                Refusal.UNAVAILABLE, f"best-effort work is kept on disk, and state.db says: {error}", retry_after_s=60.0
            ) from error

    def watch(self, call_id: str, answer: Answer, requests: Sequence[LiveRequest]) -> None:
        """Write from now on how far a call is."""
        self._running[call_id] = answer, requests
        self._saved |= {(call_id, index): one.progress for index, one in enumerate(requests)}
        self._stirred.set()

    def forget(self, call_id: str) -> None:
        """Drop a call from the disk: nobody wants it, or it was not accepted."""
        if not self.stopped:
            self._leave(call_id)
            self._leaving.pop(call_id, None)
            self._records.soon("best-effort calls", partial(self._records.flex.remove, call_id))

    def left(self, call_id: str) -> None:
        """Drop a call from the disk soon: its answer was given to the connection.

        What that holds back ends with the daemon, and the answer is not whole then; so the call stays a moment longer.
        """
        if not self.stopped:
            self._leave(call_id)
            timer = asyncio.get_running_loop().call_later(_ON_ITS_WAY_S, self.forget, call_id)
            self._leaving[call_id] = timer

    def end(self, call_id: str, status: int, body: bytes) -> None:
        """Keep the answer of a call that nobody waits for here."""
        if not self.stopped:
            self._save()
            self._leave(call_id)
            self._records.soon(
                "best-effort calls", partial(self._records.flex.end, call_id, status, body, self._policy)
            )

    def stop(self) -> None:
        """Leave on the disk what is there: the daemon ends, and another run of it takes the calls up."""
        self._save()
        for call_id, timer in list(self._leaving.items()):
            timer.cancel()
            self.forget(call_id)
        self.stopped = True

    async def save_often(self) -> None:
        """Write how far calls are, for ever; sleep deeply while there are none."""
        while True:
            if not self._running:
                self._stirred.clear()
                await self._stirred.wait()
            await asyncio.sleep(self._policy.save_s)
            self._save()

    async def waiting(self) -> list[str]:
        """Return the ids of all calls on disk that have no answer, in order of arrival."""
        return await self._records.done(self._records.flex.waiting)

    async def find(self, call_id: str) -> FlexCall | None:
        """Return a call by its own or its caller's id."""
        return await self._records.done(partial(self._records.flex.find, call_id))

    async def kept(self, call_id: str) -> KeptCall:
        """See `Service`."""
        self._save()
        call = await self.find(call_id)
        if call is None or call.id in self._leaving:
            raise _unknown(call_id)
        return KeptCall(
            id=call.id,
            caller_id=call.caller_id,
            endpoint=Endpoint(call.endpoint),
            model=call.model,
            arrived_unix_s=call.arrived_at,
            tokens_out=sum(len(one.tokens) for one in call.choices),
            done=call.status is not None,
            status=call.status,
            answer=msgspec.json.decode(call.answer) if call.answer else None,
        )

    async def drop(self, call_id: str) -> None:
        """See `Service.forget`."""
        call = await self.find(call_id)
        if call is None:
            raise _unknown(call_id)
        running = self._running.get(call.id)
        if running is not None:
            running[0].cancel()
        self.forget(call.id)

    def _leave(self, call_id: str) -> None:
        _, requests = self._running.pop(call_id, (None, ()))
        for index in range(len(requests)):
            self._saved.pop((call_id, index), None)

    def _save(self) -> None:
        """Write what changed since the last time."""
        now = {
            (call_id, index): one.progress
            for call_id, (_, requests) in self._running.items()
            for index, one in enumerate(requests)
            if one.streamed or one.finish
        }
        changed = {key: progress for key, progress in now.items() if self._saved.get(key) != progress}
        self._saved |= changed
        if changed and not self.stopped:
            self._records.soon("best-effort calls", partial(self._records.flex.save, changed))


def _unknown(call_id: str) -> UnknownNameError:
    return UnknownNameError(
        f"there is no best-effort call {call_id[:100]!r}: it is unknown, or was answered to its caller", field="call_id"
    )
