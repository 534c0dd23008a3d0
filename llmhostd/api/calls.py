"""What is one call for completions, from its body to the words of its answer?

It depends on nothing but the body: a call that outlived its connection is read, and answered, once more from it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from llmhostd.api import answers
from llmhostd.api.answers import Gathered
from llmhostd.api.convert import chat_ask, completion_ask
from llmhostd.api.errors import decode_body
from llmhostd.api.schemas import ChatRequest, CompletionRequest
from llmhostd.api.service import Ask, Endpoint, TokenUsage
from llmhostd.api.sse import ChatChunks, ChunkWriter, Head, TextChunks

Render = Callable[[Sequence[Gathered], TokenUsage], msgspec.Struct]


@dataclass(frozen=True, slots=True)
class Call:
    """One call."""

    ask: Ask
    render: Render
    """Puts the whole answer together."""
    writer: Callable[[int], ChunkWriter] | None
    """Makes chunks of so many choices; None: the caller wants no stream."""


def read_call(endpoint: Endpoint, body: bytes, call_id: str, created: int) -> Call:
    """Decode and check a body; `created`: Unix seconds. Raises CallerError naming the field."""
    if endpoint is Endpoint.CHAT:
        return _chat(decode_body(body, ChatRequest), call_id, created)
    return _text(decode_body(body, CompletionRequest), call_id, created)


def _chat(request: ChatRequest, call_id: str, created: int) -> Call:
    logprobs = bool(request.logprobs)

    def render(gathered: Sequence[Gathered], usage: TokenUsage) -> msgspec.Struct:
        choices = answers.chat_choices(gathered, logprobs=logprobs)
        counts = answers.usage_body(usage)
        return answers.ChatCompletion(call_id, "chat.completion", created, request.model, choices, counts)

    def writer(choices: int) -> ChunkWriter:
        head = Head(call_id, "chat.completion.chunk", created, request.model)
        return ChatChunks(head, choices, logprobs=logprobs, include_usage=_include_usage(request))

    return Call(chat_ask(request), render, writer if request.stream else None)


def _text(request: CompletionRequest, call_id: str, created: int) -> Call:
    logprobs = request.logprobs is not None

    def render(gathered: Sequence[Gathered], usage: TokenUsage) -> msgspec.Struct:
        choices = answers.text_choices(gathered, logprobs=logprobs)
        counts = answers.usage_body(usage)
        return answers.TextCompletion(call_id, "text_completion", created, request.model, choices, counts)

    def writer(choices: int) -> ChunkWriter:
        head = Head(call_id, "text_completion", created, request.model)
        return TextChunks(head, choices, logprobs=logprobs, include_usage=_include_usage(request))

    return Call(completion_ask(request), render, writer if request.stream else None)


def _include_usage(request: ChatRequest | CompletionRequest) -> bool:
    return request.stream_options is not None and request.stream_options.include_usage
