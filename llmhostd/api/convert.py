"""What does the caller ask for, in the daemon's words?"""

from typing import Any

import msgspec

from llmhostd.api.schemas import MEANS_NOTHING, ChatMessage, ChatRequest, Common, CompletionRequest
from llmhostd.api.service import Ask, Conversation, Prompt
from llmhostd.domain.errors import CallerError
from llmhostd.domain.ids import ModelName
from llmhostd.domain.request import Sampling, Tier

MOST_CHOICES = 16
"""Prompts times n in one call."""
_DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's, for plain completions; chat answers are as long as the context allows."""


def chat_ask(request: ChatRequest) -> Ask:
    """Convert a chat request. Raises CallerError naming the field."""
    _refuse_what_cannot_be_honoured(request, "")
    messages = tuple(_message(message, f"messages[{index}]") for index, message in enumerate(request.messages))
    if request.max_tokens is not None and request.max_completion_tokens not in (None, request.max_tokens):
        raise CallerError("max_completion_tokens: differs from max_tokens; send one of them", field="max_tokens")
    if request.top_logprobs and not request.logprobs:
        raise CallerError("top_logprobs: needs logprobs: true", field="top_logprobs")
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    prompt = Conversation(messages=messages, variables=request.chat_template_kwargs or {})
    return _ask(request, (prompt,), request.max_completion_tokens or request.max_tokens, logprobs)


def completion_ask(request: CompletionRequest) -> Ask:
    """Convert a plain completion request. Raises CallerError naming the field."""
    _refuse_what_cannot_be_honoured(request, "")
    prompts = _prompts(request.prompt)
    if len(prompts) * (request.n or 1) > MOST_CHOICES:
        raise CallerError(
            f"prompt: {len(prompts)} prompts times n = {request.n or 1} are more than {MOST_CHOICES} choices",
            field="prompt",
        )
    return _ask(request, prompts, request.max_tokens or _DEFAULT_COMPLETION_TOKENS, request.logprobs)


def _ask(request: Common, prompts: tuple[Prompt, ...], max_tokens: int | None, logprobs: int | None) -> Ask:
    if request.stream_options is not None and not request.stream:
        raise CallerError("stream_options: needs stream: true", field="stream_options")
    stop = request.stop or []
    return Ask(
        model=ModelName(request.model),
        prompts=prompts,
        n=request.n or 1,
        max_tokens=max_tokens,
        sampling=_sampling(request, logprobs),
        seeded=request.seed is not None,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        tier=Tier.BEST_EFFORT if request.service_tier == "flex" else Tier.LATENCY_SENSITIVE,
    )


def _sampling(request: Common, logprobs: int | None) -> Sampling:
    return Sampling(
        max_tokens=1,
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        top_k=max(request.top_k or 0, 0),
        min_p=request.min_p or 0.0,
        seed=request.seed or 0,
        frequency_penalty=request.frequency_penalty or 0.0,
        presence_penalty=request.presence_penalty or 0.0,
        logit_bias=request.logit_bias or {},
        ignore_eos=request.ignore_eos,
        logprobs=logprobs,
    )


def _message(message: ChatMessage, where: str) -> dict[str, Any]:
    """As templates want it: a role they know, and the text in one piece."""
    _refuse_what_cannot_be_honoured(message, f"{where}.")
    if message.content is None and message.role != "assistant":
        raise CallerError(f"{where}.content: is required", field=f"{where}.content")
    parts = message.content or ""
    text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
    # Templates know no `developer`: it is OpenAI's newer name of the same role.
    return {"role": "system" if message.role == "developer" else message.role, "content": text}


def _prompts(prompt: str | list[str | int | list[int]]) -> tuple[Prompt, ...]:
    if isinstance(prompt, str):
        return (prompt,)
    ids = tuple(one for one in prompt if isinstance(one, int))
    if len(ids) == len(prompt):
        return (ids,)
    if ids:
        raise CallerError("prompt: mixes token ids with texts or lists; expected either", field="prompt")
    return tuple(one if isinstance(one, str) else tuple(one) for one in prompt if not isinstance(one, int))


def _refuse_what_cannot_be_honoured(request: msgspec.Struct, prefix: str) -> None:
    for field in request.__struct_fields__:
        harmless = MEANS_NOTHING.get(field)
        value = getattr(request, field) if harmless is not None else None
        if harmless is not None and value is not None and value not in harmless:
            raise CallerError(f"{prefix}{field}: is not supported here", field=f"{prefix}{field}")
