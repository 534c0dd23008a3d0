"""How do pieces become the bytes of a stream, at a few microseconds per token?

All of a chunk but its text is the same throughout a choice, so it is encoded once and joined around the text.
"""

from collections.abc import Iterable
from typing import Protocol

import msgspec

from llmhostd.api.answers import chat_logprobs, text_logprobs, usage_body
from llmhostd.api.errors import Problem
from llmhostd.api.service import Piece, TokenUsage

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": waiting for the first token\n\n"

_encode = msgspec.json.encode


class ChunkWriter(Protocol):
    """Bytes of one call's stream."""

    def opening(self) -> bytes:
        """What comes before the first piece."""
        ...

    def chunks(self, pieces: Iterable[Piece]) -> bytes:
        """What shows these pieces; perhaps nothing."""
        ...

    def closing(self, usage: TokenUsage) -> bytes:
        """What ends a stream that went well."""
        ...


class Head(msgspec.Struct):
    """What all chunks of a call share."""

    id: str
    object: str
    created: int
    model: str


class ChatChunks:
    """Chunks of a chat answer."""

    def __init__(self, head: Head, choices: int, *, logprobs: bool, include_usage: bool) -> None:
        self._frame = _Frame(head, include_usage=include_usage)
        self._choices = choices
        self._logprobs = logprobs
        self._before = [b'{"index":%d,"delta":{"content":' % index for index in range(choices)]

    def opening(self) -> bytes:
        """Say whose turn it is, as OpenAI does."""
        delta = b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        return b"".join(self._frame.wrap(b'{"index":%d,%s' % (index, delta)) for index in range(self._choices))

    def chunks(self, pieces: Iterable[Piece]) -> bytes:
        return b"".join(map(self._chunk, coalesced(pieces)))

    def closing(self, usage: TokenUsage) -> bytes:
        return self._frame.closing(usage)

    def _chunk(self, piece: Piece) -> bytes:
        shown = b""
        if piece.text or piece.logprobs:
            logprobs = _encode(chat_logprobs(piece.logprobs)) if self._logprobs else b"null"
            inner = self._before[piece.choice] + _encode(piece.text) + b'},"logprobs":' + logprobs
            shown = self._frame.wrap(inner + b',"finish_reason":null}')
        if piece.finish is None:
            return shown
        end = b'{"index":%d,"delta":{},"logprobs":null,"finish_reason":%s}' % (piece.choice, _encode(piece.finish))
        return shown + self._frame.wrap(end)


class TextChunks:
    """Chunks of plain completions."""

    def __init__(self, head: Head, choices: int, *, logprobs: bool, include_usage: bool) -> None:
        self._frame = _Frame(head, include_usage=include_usage)
        self._logprobs = logprobs
        self._before = [b'{"index":%d,"text":' % index for index in range(choices)]
        self._offsets = [0] * choices

    def opening(self) -> bytes:
        return b""

    def chunks(self, pieces: Iterable[Piece]) -> bytes:
        return b"".join(map(self._chunk, coalesced(pieces)))

    def closing(self, usage: TokenUsage) -> bytes:
        return self._frame.closing(usage)

    def _chunk(self, piece: Piece) -> bytes:
        if not (piece.text or piece.logprobs or piece.finish):
            return b""
        logprobs = b"null"
        if self._logprobs and piece.logprobs:
            shown = text_logprobs(piece.logprobs, self._offsets[piece.choice])
            self._offsets[piece.choice] += sum(map(len, shown.tokens))
            logprobs = _encode(shown)
        finish = b"null" if piece.finish is None else _encode(piece.finish)
        inner = self._before[piece.choice] + _encode(piece.text)
        return self._frame.wrap(inner + b',"logprobs":' + logprobs + b',"finish_reason":' + finish + b"}")


class _Frame:
    """The part of a chunk around its one choice."""

    def __init__(self, head: Head, *, include_usage: bool) -> None:
        self._before = b"data: " + _encode(head)[:-1] + b',"choices":['
        self._after = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._include_usage = include_usage

    def wrap(self, choice: bytes) -> bytes:
        return self._before + choice + self._after

    def closing(self, usage: TokenUsage) -> bytes:
        counts = self._before + b'],"usage":' + _encode(usage_body(usage)) + b"}\n\n" if self._include_usage else b""
        return counts + DONE


def coalesced(pieces: Iterable[Piece]) -> list[Piece]:
    """Join what waits for the same choice: a reader that fell behind gets it in one chunk."""
    joined: dict[int, Piece] = {}
    for piece in pieces:
        first = joined.get(piece.choice)
        if first is None:
            joined[piece.choice] = piece
        else:
            logprobs = (*first.logprobs, *piece.logprobs)
            joined[piece.choice] = Piece(piece.choice, first.text + piece.text, piece.finish, logprobs)
    return list(joined.values())


def problem_event(problem: Problem) -> bytes:
    """Tell an error in the middle of a stream, as OpenAI does; the stream ends after it."""
    return b"data: " + _encode(problem.body) + b"\n\n"
