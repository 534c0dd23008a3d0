"""A small OpenAI-compatible server whose behaviour is asked for by the model's name."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

BASE_TOKENS = 7
TOKENS_PER_WORD = 1.5

Body = dict[str, Any]


class StandIn:
    """`requests` are the bodies it was sent, `headers` their header blocks, in order of arrival."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[Body] = []
        self.headers: list[str] = []
        self.waiting_for = 1
        self._all_here = asyncio.Event()
        self._refused = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(next(line.partition(":")[2] for line in head.split("\r\n") if line.startswith("Content-Length")))
        body = json.loads(await reader.readexactly(length))
        self.headers.append(head)
        self.requests.append(body)
        try:
            await self._behave(body, writer)
        finally:
            writer.close()

    async def _behave(self, body: Body, writer: asyncio.StreamWriter) -> None:
        behaviours: dict[str, Callable[[Body, asyncio.StreamWriter], Coroutine[Any, Any, None]]] = {
            "full": self._refuse,
            "loading": self._refuse_once,
            "broken": self._break,
            "cut": self._cut,
            "silent": self._be_silent,
            "failing": self._fail_in_stream,
            "together": self._wait_for_all,
            "unframed": self._answer_until_close,
        }
        await behaviours.get(body["model"], self._answer)(body, writer)

    async def _answer(self, body: Body, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for event in self._events(body):
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await writer.drain()
            await asyncio.sleep(0.001)
        writer.write(b"0\r\n\r\n")

    async def _answer_until_close(self, body: Body, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + b"".join(self._events(body)))

    def _events(self, body: Body) -> list[bytes]:
        """`paired` models put two tokens in an event, as a server may."""
        prompt = body["messages"][0]["content"] if "messages" in body else body["prompt"]
        per_event = 2 if body["model"] == "paired" else 1
        text = "word " * per_event
        delta: Body = {"delta": {"content": text}} if "messages" in body else {"text": text}
        chunks: list[Body] = (
            [{"choices": [{"delta": {"role": "assistant", "content": ""}}]}] if "messages" in body else []
        )
        chunks += [{"choices": [delta]}] * (body["max_tokens"] // per_event)
        chunks += [{"choices": [{"delta": {}, "finish_reason": "length"}]}]
        count = BASE_TOKENS + TOKENS_PER_WORD * len(prompt.split())
        chunks += [{"choices": [], "usage": {"prompt_tokens": int(count), "completion_tokens": body["max_tokens"]}}]
        return [f"data: {json.dumps(chunk)}\r\n\r\n".encode() for chunk in chunks] + [b"data: [DONE]\n\n"]

    async def _refuse(self, body: Body, writer: asyncio.StreamWriter) -> None:
        text = b'{"error":{"message":"busy"}}'
        writer.write(
            b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 0.01\r\nContent-Length: %d\r\n\r\n" % len(text) + text
        )

    async def _refuse_once(self, body: Body, writer: asyncio.StreamWriter) -> None:
        self._refused += 1
        await (self._refuse if self._refused == 1 else self._answer)(body, writer)

    async def _break(self, body: Body, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\n\r\noops")

    async def _cut(self, body: Body, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        event = self._events(body)[1]
        writer.write(b"%x\r\n%s\r\n" % (len(event), event))

    async def _be_silent(self, body: Body, writer: asyncio.StreamWriter) -> None:
        await self._all_here.wait()

    async def _fail_in_stream(self, body: Body, writer: asyncio.StreamWriter) -> None:
        events = [self._events(body)[1], b'data: {"error": {"message": "worker gone"}}\n\n', b"data: [DONE]\n\n"]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + b"".join(events))

    async def _wait_for_all(self, body: Body, writer: asyncio.StreamWriter) -> None:
        """Answers nobody before everybody has asked: a generator that waits for answers never gets one."""
        if len(self.requests) >= self.waiting_for:
            self._all_here.set()
        await self._all_here.wait()
        await self._answer(body, writer)


@asynccontextmanager
async def stand_in() -> AsyncIterator[StandIn]:
    """A server on a free port."""
    server = StandIn()
    listening = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()
    server.url = f"http://{host}:{port}"
    try:
        yield server
    finally:
        server._all_here.set()
        listening.close()
