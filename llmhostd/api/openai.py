"""What do OpenAI's clients call?"""

import secrets
import time
from collections.abc import Sequence

import msgspec
from litestar import get, post
from litestar.params import FromPath, RawBody
from litestar.types import ASGIApp

from llmhostd.api import answers
from llmhostd.api.answers import Gathered, ModelCard, ModelList
from llmhostd.api.convert import chat_ask, completion_ask
from llmhostd.api.errors import decode_body
from llmhostd.api.injected import Host, Policy
from llmhostd.api.openapi import documented
from llmhostd.api.policy import HttpPolicy
from llmhostd.api.respond import Render, StreamedAnswer, WholeAnswer
from llmhostd.api.schemas import ChatRequest, CompletionRequest
from llmhostd.api.service import Completion, TokenUsage
from llmhostd.api.sse import ChatChunks, ChunkWriter, Head, TextChunks
from llmhostd.domain.ids import ModelName


@post(
    "/v1/chat/completions",
    operation_id="create_chat_completion",
    status_code=200,
    summary="Answer a conversation",
    opt=documented(body=ChatRequest, answer=answers.ChatCompletion, streams=True),
)
async def chat_completions(body: RawBody, service: Host, policy: Policy) -> ASGIApp:
    """OpenAI's chat completions, streamed or whole. What cannot be in time is refused at once with 429."""
    request = decode_body(body, ChatRequest)
    completion = await service.complete(chat_ask(request))
    if request.stream:
        head, usage = _head("chatcmpl", "chat.completion.chunk", request.model), _include_usage(request)
        writer = ChatChunks(head, completion.choices, logprobs=bool(request.logprobs), include_usage=usage)
        return _streamed(completion, writer, policy)
    return WholeAnswer(completion, _whole_chat(request))


@post(
    "/v1/completions",
    operation_id="create_completion",
    status_code=200,
    summary="Continue a text",
    opt=documented(body=CompletionRequest, answer=answers.TextCompletion, streams=True),
)
async def completions(body: RawBody, service: Host, policy: Policy) -> ASGIApp:
    """OpenAI's plain completions of texts or token ids, streamed or whole."""
    request = decode_body(body, CompletionRequest)
    completion = await service.complete(completion_ask(request))
    if request.stream:
        head, usage = _head("cmpl", "text_completion", request.model), _include_usage(request)
        writer = TextChunks(head, completion.choices, logprobs=request.logprobs is not None, include_usage=usage)
        return _streamed(completion, writer, policy)
    return WholeAnswer(completion, _whole_text(request))


@get("/v1/models", operation_id="list_models", summary="All models that can be asked for")
async def list_models(service: Host) -> ModelList:
    """OpenAI's list; `/api/v1/models` says more."""
    return ModelList("list", [_card(service, one.name) for one in service.models()])


@get(
    "/v1/models/{name:str}",
    operation_id="get_model",
    summary="One model",
    opt=documented(errors=(404,)),
)
async def get_model(name: FromPath[str], service: Host) -> ModelCard:
    """OpenAI's card of a model."""
    return _card(service, ModelName(name))


def _card(service: Host, name: ModelName) -> ModelCard:
    return ModelCard(id=name, object="model", created=service.created_unix_s(name), owned_by="llmhostd")


def _head(prefix: str, kind: str, model: str) -> Head:
    return Head(f"{prefix}-{secrets.token_hex(12)}", kind, int(time.time()), model)


def _include_usage(request: ChatRequest | CompletionRequest) -> bool:
    return request.stream_options is not None and request.stream_options.include_usage


def _streamed(completion: Completion, writer: ChunkWriter, policy: HttpPolicy) -> StreamedAnswer:
    return StreamedAnswer(completion, writer, policy.first_byte_s)


def _whole_chat(request: ChatRequest) -> Render:
    def render(gathered: Sequence[Gathered], usage: TokenUsage) -> msgspec.Struct:
        head = _head("chatcmpl", "chat.completion", request.model)
        choices = answers.chat_choices(gathered, logprobs=bool(request.logprobs))
        counts = answers.usage_body(usage)
        return answers.ChatCompletion(head.id, head.object, head.created, head.model, choices, counts)

    return render


def _whole_text(request: CompletionRequest) -> Render:
    def render(gathered: Sequence[Gathered], usage: TokenUsage) -> msgspec.Struct:
        head = _head("cmpl", "text_completion", request.model)
        choices = answers.text_choices(gathered, logprobs=request.logprobs is not None)
        counts = answers.usage_body(usage)
        return answers.TextCompletion(head.id, head.object, head.created, head.model, choices, counts)

    return render
