"""How does a call become requests, before anything is computed?"""

import itertools
import secrets
import time
from pathlib import Path

import msgspec

from llmhostd.api.service import Ask, RefusedError
from llmhostd.daemon.answer import Answer
from llmhostd.daemon.live import LiveRequest
from llmhostd.daemon.loop import HostLoop
from llmhostd.daemon.models import Models
from llmhostd.daemon.requests import LiveRequests
from llmhostd.daemon.texts import Texts
from llmhostd.domain.actions import Refusal
from llmhostd.domain.errors import CallerError
from llmhostd.domain.events import RequestArrived, RequestCancelled
from llmhostd.domain.ids import RequestId
from llmhostd.domain.model import ModelSpec
from llmhostd.domain.request import RequestShape, Sampling
from llmhostd.text.tokenizer import ModelTokenizer


class Submission:
    """Checks, tokenizes and submits."""

    def __init__(self, models: Models, texts: Texts, requests: LiveRequests, loop: HostLoop, most_live: int) -> None:
        self._models = models
        self._texts = texts
        self._requests = requests
        self._loop = loop
        self._most_live = most_live
        self._numbers = itertools.count(1)

    async def submit(self, ask: Ask) -> Answer:
        """Return the answer under way. Raises CallerError, UnknownModelError or RefusedError; nothing runs then."""
        arrived_s = time.monotonic()
        checkpoint = Path(self._models.registered(ask.model).path)
        tokenizer, prompts = await self._texts.encode(ask.model, checkpoint, ask.prompts)
        spec = self._models.spec(ask.model)  # looked up now: it may have been removed while its prompt was encoded
        lengths = [_most_tokens(ask, spec, prompt) for prompt in prompts]
        _check_bias(ask, spec)
        choices = len(prompts) * ask.n
        if len(self._requests) + choices > self._most_live:
            raise RefusedError(
                Refusal.OVERLOADED, f"{len(self._requests)} completions are under way already", retry_after_s=1.0
            )
        ids = [RequestId(f"req-{next(self._numbers)}") for _ in range(choices)]
        answer = Answer(choices, lambda: self._cancel(ids))
        answer.prompt_tokens = sum(map(len, prompts))
        for choice, request_id in enumerate(ids):
            prompt, most = prompts[choice // ask.n], lengths[choice // ask.n]
            shape = RequestShape(
                id=request_id, model=ask.model, prompt_tokens=len(prompt), max_tokens=most, tier=ask.tier,
                slo=spec.slo, arrived_s=arrived_s,
            )  # fmt: skip
            sampling = _sampling(ask, tokenizer, choice % ask.n, most)
            self._requests.add(
                LiveRequest(
                    shape,
                    prompt,
                    sampling,
                    tokenizer=tokenizer,
                    stop=ask.stop,
                    answer=answer,
                    choice=choice,
                    pays_for_prompt=choice % ask.n == 0,
                )
            )
            self._loop.hear(RequestArrived(request=shape))
            if answer.error is not None:
                raise answer.error
        return answer

    def _cancel(self, ids: list[RequestId]) -> None:
        for request_id in ids:
            if self._requests.cancel(request_id):
                self._loop.hear(RequestCancelled(request_id=request_id))


def _most_tokens(ask: Ask, spec: ModelSpec, prompt: tuple[int, ...]) -> int:
    """Return how many tokens may follow a prompt. Raises CallerError with the numbers if they do not fit."""
    architecture = spec.shape.architecture
    context, field = (
        architecture.max_context_tokens,
        "prompt" if isinstance(ask.prompts[0], str | tuple) else "messages",
    )
    if max(prompt) >= architecture.vocab:
        raise CallerError(f"{field}: token {max(prompt)} is not in 0..{architecture.vocab - 1}", field=field)
    left = context - len(prompt)
    if left < 1:
        raise CallerError(
            f"{field}: {len(prompt)} tokens leave no room in {ask.model}'s context of {context} tokens", field=field
        )
    if ask.max_tokens is not None and ask.max_tokens > left:
        raise CallerError(
            f"max_tokens: {len(prompt)} prompt tokens and {ask.max_tokens} output tokens are more than "
            f"{ask.model}'s context of {context} tokens; at most {left} can follow",
            field="max_tokens",
        )
    return left if ask.max_tokens is None else ask.max_tokens


def _check_bias(ask: Ask, spec: ModelSpec) -> None:
    vocab = spec.shape.architecture.vocab
    for token in ask.sampling.logit_bias:
        if token >= vocab:
            raise CallerError(f"logit_bias: token {token} is not in 0..{vocab - 1}", field="logit_bias")


def _sampling(ask: Ask, tokenizer: ModelTokenizer, number: int, max_tokens: int) -> Sampling:
    """Complete the caller's wishes. Choice n of a seeded call draws as from seed + n."""
    return msgspec.structs.replace(
        ask.sampling,
        max_tokens=max_tokens,
        seed=ask.sampling.seed + number if ask.seeded else secrets.randbits(63),
        stop_token_ids=() if ask.sampling.ignore_eos else tokenizer.eos_token_ids,
    )
