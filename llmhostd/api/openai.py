"""What do OpenAI's clients call?"""

import secrets
import time
from typing import Annotated

from litestar import get, post
from litestar.params import FromPath, HeaderParameter, RawBody
from litestar.types import ASGIApp

from llmhostd.api import answers
from llmhostd.api.answers import ModelCard, ModelList
from llmhostd.api.calls import read_call
from llmhostd.api.injected import Host, HostAndPolicy, Serving
from llmhostd.api.openapi import documented
from llmhostd.api.respond import StreamedAnswer, WholeAnswer
from llmhostd.api.schemas import ChatRequest, CompletionRequest
from llmhostd.api.service import CallRecord, Endpoint
from llmhostd.domain.ids import ModelName
from llmhostd.domain.request import Tier

CallerId = Annotated[
    str,
    HeaderParameter(
        name="X-Request-Id", max_length=200,
        description="Your own name for the call: a best-effort one can be found by it at /api/v1/requests/ID.",
    ),
]  # fmt: skip
_PREFIXES = {Endpoint.CHAT: "chatcmpl", Endpoint.TEXT: "cmpl"}


@post(
    "/v1/chat/completions",
    operation_id="create_chat_completion",
    status_code=200,
    summary="Answer a conversation",
    opt=documented(body=ChatRequest, answer=answers.ChatCompletion, streams=True),
)
async def chat_completions(body: RawBody, serving: HostAndPolicy, caller_id: CallerId = "") -> ASGIApp:
    """OpenAI's chat completions, streamed or whole. What cannot be in time is refused at once with 429."""
    return await _answered(Endpoint.CHAT, body, caller_id, serving)


@post(
    "/v1/completions",
    operation_id="create_completion",
    status_code=200,
    summary="Continue a text",
    opt=documented(body=CompletionRequest, answer=answers.TextCompletion, streams=True),
)
async def completions(body: RawBody, serving: HostAndPolicy, caller_id: CallerId = "") -> ASGIApp:
    """OpenAI's plain completions of texts or token ids, streamed or whole."""
    return await _answered(Endpoint.TEXT, body, caller_id, serving)


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
    created, base = service.added(name)
    return ModelCard(id=name, object="model", created=created, owned_by="llmhostd", parent=base)


async def _answered(endpoint: Endpoint, body: bytes, caller_id: str, serving: Serving) -> ASGIApp:
    call_id = f"{_PREFIXES[endpoint]}-{secrets.token_hex(12)}"
    call = read_call(endpoint, body, call_id, int(time.time()))
    record = CallRecord(id=call_id, caller_id=caller_id, endpoint=endpoint, body=body)
    completion = await serving.service.complete(call.ask, record)
    if call.writer is None:
        return WholeAnswer(completion, call.render, call_id)
    # Best effort is not refused once it is accepted, and may wait long: its caller is told at once what it is called.
    at_once = call.ask.tier is Tier.BEST_EFFORT
    return StreamedAnswer(
        completion, call.writer(completion.choices), call_id, serving.policy.first_byte_s, at_once=at_once
    )
