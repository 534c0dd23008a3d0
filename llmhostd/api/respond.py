"""How does an answer that takes its time leave, and what if the caller leaves first?

Plain ASGI applications: one task per call watches for the disconnect; nothing is created per token.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping

import msgspec
from litestar.types import Receive, Scope, Send

from llmhostd.api.answers import Gathered
from llmhostd.api.calls import Render
from llmhostd.api.errors import Problem, problem_of
from llmhostd.api.service import Completion, Piece, Subscription
from llmhostd.api.sse import KEEP_ALIVE, ChunkWriter, problem_event

_JSON = "application/json"
_EVENTS = "text/event-stream; charset=utf-8"
_ID_HEADER = "x-request-id"


class StreamedAnswer:
    """Send pieces as server-sent events as they come."""

    def __init__(
        self, completion: Completion, writer: ChunkWriter, call_id: str, first_byte_s: float, *, at_once: bool
    ) -> None:
        """`at_once`: send the headers before anything is known; what goes wrong later is told in the stream."""
        self._completion = completion
        self._writer = writer
        self._call_id = call_id
        self._first_byte_s = first_byte_s
        self._at_once = at_once
        self._opened = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        """Answer; a refusal before the first token still has its own status."""
        with watched(receive, self._completion.cancel):
            try:
                if self._at_once:
                    await self._open(send)
                pieces = await self._first(send)
                while pieces:
                    chunks = self._writer.chunks(pieces)
                    if chunks:
                        await send_body(send, chunks, more=True)
                    pieces = await self._completion.pieces()
                await send_body(send, self._writer.closing(self._completion.usage()))
            except Exception as error:  # noqa: BLE001 - one table decides what each becomes
                problem = problem_of(error)
                await (send_body(send, problem_event(problem)) if self._opened else send_problem(send, problem))
            finally:
                self._completion.cancel()

    async def _first(self, send: Send) -> list[Piece]:
        """Wait for the first pieces; a long wait gets its headers, then comments that keep proxies patient."""
        while True:
            try:
                async with asyncio.timeout(self._first_byte_s):
                    pieces = await self._completion.pieces()
            except TimeoutError:
                await self._open(send)
                await send_body(send, KEEP_ALIVE, more=True)
            else:
                await self._open(send)
                return pieces

    async def _open(self, send: Send) -> None:
        if not self._opened:
            self._opened = True
            await send_headers(send, 200, _EVENTS, {_ID_HEADER: self._call_id})
            opening = self._writer.opening()
            if opening:
                await send_body(send, opening, more=True)


class WholeAnswer:
    """Send one JSON document once every choice has ended."""

    def __init__(self, completion: Completion, render: Render, call_id: str) -> None:
        self._completion = completion
        self._render = render
        self._call_id = call_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        """Gather and answer."""
        with watched(receive, self._completion.cancel):
            try:
                body = await whole_body(self._completion, self._render)
            except Exception as error:  # noqa: BLE001 - one table decides what each becomes
                await send_problem(send, problem_of(error))
            else:
                await send_headers(send, 200, _JSON, {_ID_HEADER: self._call_id})
                await send_body(send, body)
            finally:
                self._completion.cancel()


class EventFeed:
    """Send decisions as server-sent events until somebody hangs up."""

    def __init__(self, subscription: Subscription, heartbeat_s: float) -> None:
        self._subscription = subscription
        self._heartbeat_s = heartbeat_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        """Feed."""
        with watched(receive, self._subscription.close):
            try:
                await send_headers(send, 200, _EVENTS)
                while (events := await self._next()) is not None:
                    await send_body(send, events or b": nothing new\n\n", more=True)
                await send_body(send, b"")
            finally:
                self._subscription.close()

    async def _next(self) -> bytes | None:
        try:
            async with asyncio.timeout(self._heartbeat_s):
                decisions = await self._subscription.decisions()
        except TimeoutError:
            return b""
        if not decisions:
            return None
        named = ((self._subscription.event_id(one).encode(), msgspec.json.encode(one)) for one in decisions)
        return b"".join(b"id: %s\ndata: %s\n\n" % each for each in named)


async def whole_body(completion: Completion, render: Render) -> bytes:
    """Wait for every choice, and put the answer together."""
    gathered = [Gathered() for _ in range(completion.choices)]
    while pieces := await completion.pieces():
        for piece in pieces:
            gathered[piece.choice].add(piece)
    return msgspec.json.encode(render(gathered, completion.usage()))


async def send_problem(send: Send, problem: Problem) -> None:
    """Answer with an error."""
    await send_headers(send, problem.status, _JSON, problem.headers)
    await send_body(send, msgspec.json.encode(problem.body))


@contextlib.contextmanager
def watched(receive: Receive, gone: Callable[[], None]) -> Iterator[None]:
    """Call `gone` if the caller disconnects meanwhile."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone()

    watcher = asyncio.ensure_future(watch())
    try:
        yield
    finally:
        watcher.cancel()


async def send_headers(send: Send, status: int, media_type: str, more: Mapping[str, str] | None = None) -> None:
    """Begin an answer that nobody may keep."""
    headers = {"content-type": media_type, "cache-control": "no-store", **(more or {})}
    if media_type is _EVENTS:
        headers["x-accel-buffering"] = "no"  # nginx would hold tokens back
    encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})


async def send_body(send: Send, body: bytes, *, more: bool = False) -> None:
    """Go on with an answer, or end it."""
    await send({"type": "http.response.body", "body": body, "more_body": more})
