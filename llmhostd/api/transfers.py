"""How does a file of a model leave for another host, while tokens leave too?

By ranges, a few at a time: read by threads, a piece after the other.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

from litestar.types import Receive, Scope, Send

from llmhostd.api.errors import problem_of
from llmhostd.api.ranges import Wanted, wanted
from llmhostd.api.respond import send_body, send_headers, send_problem, watched
from llmhostd.api.service import RefusedError
from llmhostd.domain.actions import Refusal
from llmhostd.domain.errors import UnknownNameError
from llmhostd.loader.served_store import ServedFile, open_served

_PIECE_BYTES = 256 << 10
_WAIT_S = 5.0
"""Longer than that nobody waits for his turn: he is told to come back."""
_STALLED_S = 30.0
"""Who takes no piece for so long is not waited for."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class Transfers:
    """Whose turn is it? In the order of asking."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._free = asyncio.Semaphore(most)
        self._threads = ThreadPoolExecutor(max(most, 1), "store-file")

    async def run(self, reads: Callable[[], T]) -> T:
        """Read, in a thread of ours: a slow disk holds up nobody else's."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, reads)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Have a turn. Raises UnknownNameError where nobody ever has, RefusedError when it would take too long."""
        if not self._most:
            raise UnknownNameError("this daemon hands no models on: `http.max_store_transfers` is 0")
        try:
            async with asyncio.timeout(_WAIT_S):
                await self._free.acquire()
        except TimeoutError as error:
            because = f"{self._most} transfers of stores are under way, which is all that are allowed at a time"
            raise RefusedError(Refusal.UNAVAILABLE, because, retry_after_s=1.0) from error
        try:
            yield
        finally:
            self._free.release()


class StoreFile:
    """Answer with a file, or a part of it."""

    def __init__(self, directory: Path, name: str, asked: tuple[str, str], transfers: Transfers, *, head: bool) -> None:
        """`asked`: the headers `Range` and `If-Range`. `head`: nobody wants the bytes."""
        self._directory, self._name, self._asked, self._head = directory, name, asked, head
        self._transfers = transfers
        self._gone = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        """Wait for a turn, open the file, send."""
        with watched(receive, self._leave):
            try:
                async with self._transfers.turn():
                    file = await self._transfers.run(partial(open_served, self._directory, self._name))
                    try:
                        await self._answer(file, send)
                    finally:
                        os.close(file.descriptor)
            except (UnknownNameError, RefusedError) as error:
                await send_problem(send, problem_of(error))

    def _leave(self) -> None:
        self._gone = True

    async def _answer(self, file: ServedFile, send: Send) -> None:
        asked = wanted(*self._asked, file.size_bytes, file.etag)
        length = {"Content-Length": str(asked.end - asked.begin)}
        await send_headers(send, asked.status, "application/octet-stream", asked.headers | length)
        if self._head or asked.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            await send_body(send, b"")
            return
        try:
            await self._pour(file.descriptor, asked, send)
        except TimeoutError:
            log.warning("%s/%s: whoever fetches it takes nothing any more", self._directory, self._name)
        except OSError as error:  # the connection breaks, so nobody takes it for whole
            log.error("%s/%s: cannot be read: %s", self._directory, self._name, error.strerror)  # noqa: TRY400

    async def _pour(self, descriptor: int, asked: Wanted, send: Send) -> None:
        at = asked.begin
        while at < asked.end and not self._gone:
            size = min(_PIECE_BYTES, asked.end - at)
            piece = await self._transfers.run(partial(os.pread, descriptor, size, at))
            if not piece:
                log.error("%s/%s: was cut short while it was read", self._directory, self._name)
                return  # the connection breaks, so nobody takes it for whole
            at += len(piece)
            async with asyncio.timeout(_STALLED_S):
                await send_body(send, piece, more=at < asked.end)
