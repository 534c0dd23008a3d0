"""What does the daemon say? All I/O of the terminal UI, over TCP or a unix socket.

Both streams go on for ever: they reconnect, and say what is wrong meanwhile.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import httpx
import msgspec

from llmhostd.domain.snapshot import (
    Decision,
    HostSnapshot,
    InstanceSnapshot,
    ModelSnapshot,
    NodeSnapshot,
    RequestSnapshot,
)
from llmhostd.domain.words import Word

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:11500"
SNAPSHOT_EVERY_S = 0.4
RETRY_AFTER_S = 1.0
ANSWER_WITHIN_S = 5.0


class Snapshot(Word):
    """All that the daemon says of this second."""

    taken_s: float
    """On this process's monotonic clock."""
    host: HostSnapshot
    models: tuple[ModelSnapshot, ...]
    nodes: tuple[NodeSnapshot, ...]
    instances: tuple[InstanceSnapshot, ...]
    requests: tuple[RequestSnapshot, ...]


class Lost(Word):
    """Why there is no snapshot this time."""

    taken_s: float
    because: str


class DaemonClient:
    """Asks one daemon. Use as an async context manager."""

    def __init__(self, url: str | None = None, socket: Path | None = None, key: str | None = None) -> None:
        """Speak over `socket` when one is given, to `url` (or the default address) otherwise, with an API key."""
        self.address = str(socket) if socket else _whole(url or DEFAULT_URL)
        self._http = httpx.AsyncClient(
            base_url="http://llmhostd" if socket else self.address,
            transport=httpx.AsyncHTTPTransport(uds=str(socket) if socket else None),
            timeout=ANSWER_WITHIN_S,
            headers={"Authorization": f"Bearer {key}"} if key and not socket else {},
        )

    async def __aenter__(self) -> "DaemonClient":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.aclose()

    async def snapshots(self) -> AsyncIterator[Snapshot | Lost]:
        """Yield a snapshot a few times a second, or why there is none."""
        while True:
            try:
                yield await self._snapshot()
                await asyncio.sleep(SNAPSHOT_EVERY_S)
            except (httpx.HTTPError, httpx.InvalidURL, msgspec.DecodeError) as error:
                yield Lost(taken_s=time.monotonic(), because=explain(error, self.address))
                await asyncio.sleep(RETRY_AFTER_S)

    async def decisions(self) -> AsyncIterator[Decision]:
        """Yield decisions as they are made; after a lost connection, those after the last one seen."""
        last_id = ""
        while True:
            try:
                async for event_id, data in self._events(last_id):
                    last_id = event_id or last_id
                    yield msgspec.json.decode(data, type=Decision)
            except (httpx.HTTPError, httpx.InvalidURL, msgspec.DecodeError):
                pass  # `snapshots` asks the same daemon and says why
            await asyncio.sleep(RETRY_AFTER_S)

    async def _snapshot(self) -> Snapshot:
        return Snapshot(
            taken_s=time.monotonic(),
            host=await self._get("host", HostSnapshot),
            models=await self._get("models", tuple[ModelSnapshot, ...]),
            nodes=await self._get("nodes", tuple[NodeSnapshot, ...]),
            instances=await self._get("instances", tuple[InstanceSnapshot, ...]),
            requests=await self._get("requests", tuple[RequestSnapshot, ...]),
        )

    async def _get(self, what: str, shape: type[T]) -> T:
        answer = await self._http.get(f"/api/v1/{what}")
        answer.raise_for_status()
        return msgspec.json.decode(answer.content, type=shape)

    async def _events(self, last_id: str) -> AsyncIterator[tuple[str, str]]:
        """Yield (id, data) of server-sent events (WHATWG HTML, 9.2.6); comments and other fields are skipped."""
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
        patience = httpx.Timeout(ANSWER_WITHIN_S, read=None)
        async with self._http.stream("GET", "/api/v1/events", headers=headers, timeout=patience) as answer:
            answer.raise_for_status()
            event_id, data = "", []
            async for line in answer.aiter_lines():
                name, _, value = line.partition(":")
                value = value.removeprefix(" ")
                if name == "data":
                    data.append(value)
                elif name == "id":
                    event_id = value
                elif not line and data:
                    yield event_id, "\n".join(data)
                    data = []


def explain(error: Exception, address: str) -> str:
    """One line for a person."""
    if isinstance(error, httpx.HTTPStatusError):
        path = error.request.url.path
        if error.response.status_code == httpx.codes.UNAUTHORIZED:
            return f"{address} wants another API key: llmhostd --url URL --key KEY top, or set LLMHOSTD_API_KEY"
        return f"{address} answers, but not as llmhostd does: {error.response.status_code} at {path}"
    if isinstance(error, msgspec.DecodeError):
        return f"{address} answers, but not as this version of llmhostd does: {error}"
    if isinstance(error, httpx.TimeoutException):
        return f"{address} does not answer within {ANSWER_WITHIN_S:.0f} s"
    if isinstance(error, httpx.ConnectError):
        return f"nothing listens at {address}"
    return f"{address}: {error or type(error).__name__}"


def _whole(url: str) -> str:
    """`box:11500` means HTTP, as for every other command."""
    return (url if "//" in url else f"http://{url}").rstrip("/")
