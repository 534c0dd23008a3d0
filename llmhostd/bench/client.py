"""How does one caller ask, and when does each part of the answer arrive?

Each request has its own connection, as callers who do not know each other have.
"""

import asyncio
import ssl
from collections.abc import Callable
from enum import StrEnum
from urllib.parse import SplitResult, urlsplit

import msgspec

from llmhostd.bench.http1 import EventLines, PeerError, Response, post
from llmhostd.bench.records import Outcome, Record
from llmhostd.bench.schedule import PlannedRequest
from llmhostd.domain.errors import CallerError
from llmhostd.domain.words import Word

REFUSALS = (429, 503)


class Endpoint(StrEnum):
    """Which of OpenAI's generating endpoints is asked."""

    CHAT = "chat"
    COMPLETIONS = "completions"

    @property
    def path(self) -> str:
        """Below `/v1`."""
        return "/chat/completions" if self is Endpoint.CHAT else "/completions"


class Target(Word):
    """Which server, asked how."""

    url: str
    """With or without `/v1`."""
    endpoint: Endpoint = Endpoint.CHAT
    api_key: str | None = None
    ignore_eos: bool = False
    """Ask for exactly the wanted number of output tokens (an extension that vLLM, llama.cpp and llmhostd know)."""
    extra: dict[str, object] = msgspec.field(default_factory=dict)
    """Members added to every request's body."""
    timeout_s: float = 600.0

    def split(self) -> SplitResult:
        """The URL's parts, ending in `/v1`. Raises CallerError."""
        parts = urlsplit(self.url if "//" in self.url else f"http://{self.url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CallerError(f"{self.url!r} is no URL like http://127.0.0.1:11500", field="url")
        path = parts.path.rstrip("/")
        return parts._replace(path=path if path.endswith("/v1") else f"{path}/v1")


class Request(Word):
    """A request whose bytes are ready, so that nothing but sending is left to do when it is due."""

    planned: PlannedRequest
    wire: bytes


def prepare(target: Target, planned: PlannedRequest, prompt: str) -> Request:
    """Encode a streaming request."""
    body: dict[str, object] = {
        "model": planned.model,
        "max_tokens": planned.output_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if target.endpoint is Endpoint.CHAT:
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    if target.ignore_eos:
        body["ignore_eos"] = True
    wire = post(target.split(), target.endpoint.path, msgspec.json.encode(body | target.extra), target.api_key)
    return Request(planned=planned, wire=wire)


class _Delta(Word):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(Word):
    delta: _Delta = _Delta()
    text: str | None = None
    finish_reason: str | None = None


class _Usage(Word):
    prompt_tokens: int
    completion_tokens: int


class _Chunk(Word):
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    error: object = None


class Exchange(asyncio.Protocol):
    """One request and its answer; `record` when it is over."""

    def __init__(self, request: Request, clock: Callable[[], float]) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._clock = clock
        self._response = Response()
        self._events = EventLines()
        self._began_s = self._end_s = clock()
        self._token_times_s: list[float] = []
        self._usage: _Usage | None = None
        self._finish: str | None = None
        self._error = b""
        self._sent = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send at once."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - asyncio's own contract for TCP
        transport.write(self._request.wire)
        self._sent = True

    def data_received(self, data: bytes) -> None:
        """Stamp first, look later."""
        now = self._clock()
        try:
            body = self._response.feed(data)
            if self._response.status == 200:
                for payload in self._events.feed(body):
                    self._take(payload, now)
            else:
                self._error += body
            if self._response.complete:
                self.end()
        except (PeerError, msgspec.MsgspecError) as error:
            self.end(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        """The end, if the answer was not over before."""
        try:
            self._response.close()
            self.end()
        except PeerError as error:
            self.end(str(exc or error))

    def _take(self, payload: bytes, now: float) -> None:
        if payload == b"[DONE]":
            return
        chunk = msgspec.json.decode(payload, type=_Chunk)
        if chunk.error is not None:
            self._error = msgspec.json.encode(chunk.error)
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices:
            if choice.text or choice.delta.content or choice.delta.reasoning_content:
                self._token_times_s.append(now)
            self._finish = choice.finish_reason or self._finish

    def end(self, error: str = "") -> None:
        """Nothing more is waited for; what comes later does not count."""
        if self.over.done():
            return
        if error:
            self._error = error.encode()
        self._end_s = self._clock()
        self.over.set_result(None)

    def record(self) -> Record:
        """What happened, as of now."""
        status = self._response.status
        return Record(
            planned=self._request.planned,
            outcome=self._outcome(status),
            sent_s=self._began_s,
            end_s=self._end_s,
            status=status,
            token_times_s=tuple(self._token_times_s),
            prompt_tokens=self._usage.prompt_tokens if self._usage else None,
            completion_tokens=self._usage.completion_tokens if self._usage else None,
            finish=self._finish,
            retry_after_s=_seconds(self._response.headers.get("retry-after")),
            error=self._error[:500].decode(errors="replace"),
        )

    def _outcome(self, status: int | None) -> Outcome:
        if status in REFUSALS:
            return Outcome.REFUSED
        if status == 200:
            return Outcome.COMPLETED if self._finish and not self._error else Outcome.LOST
        return Outcome.LOST if self._sent and status is None else Outcome.ERROR


async def ask(target: Target, request: Request, clock: Callable[[], float]) -> Record:
    """Send a request now and see it through. Never raises for what the server does: the record says it."""
    exchange = Exchange(request, clock)
    try:
        async with asyncio.timeout(target.timeout_s):
            transport = await _connect(target.split(), exchange)
            try:
                await asyncio.shield(exchange.over)  # a timeout must not decide how it ended: `end` does
            finally:
                transport.abort()
    except TimeoutError:
        exchange.end(f"no end after {target.timeout_s:g} s")
    except OSError as error:
        exchange.end(str(error))
    return exchange.record()


async def _connect(url: SplitResult, exchange: Exchange) -> asyncio.Transport:
    encryption = ssl.create_default_context() if url.scheme == "https" else None
    port = url.port or (443 if encryption else 80)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(lambda: exchange, url.hostname or "", port, ssl=encryption)
    return transport


def _seconds(header: str | None) -> float | None:
    try:
        return None if header is None else float(header)
    except ValueError:  # a date: OpenAI's servers give seconds
        return None
