"""How does a call become requests, before anything is computed?"""

import asyncio
import itertools
import secrets
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from llmhostd.api.service import Ask, CallRecord, RefusedError
from llmhostd.daemon.answer import Answer
from llmhostd.daemon.live import LiveRequest
from llmhostd.daemon.loop import HostLoop
from llmhostd.daemon.models import Models
from llmhostd.daemon.requests import LiveRequests
from llmhostd.daemon.shelf import Shelf
from llmhostd.daemon.texts import Texts
from llmhostd.daemon.whereabouts import Whereabouts
from llmhostd.domain.actions import Refusal
from llmhostd.domain.errors import CallerError, LlmhostdError
from llmhostd.domain.events import RequestArrived, RequestCancelled
from llmhostd.domain.ids import RequestId
from llmhostd.domain.model import ModelSpec
from llmhostd.domain.request import RequestShape, Tier
from llmhostd.state.flex import ChoiceProgress, FlexCall
from llmhostd.text.tokenizer import ModelTokenizer


class _Encoded(NamedTuple):
    """A call whose prompts are tokens."""

    ask: Ask
    spec: ModelSpec
    tokenizer: ModelTokenizer
    prompts: list[tuple[int, ...]]
    lengths: list[int]
    """Most output tokens of each prompt."""

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.ask.n


class Submission:
    """Checks, tokenizes and submits."""

    def __init__(
        self,
        models: Models,
        texts: Texts,
        whereabouts: Whereabouts,
        requests: LiveRequests,
        loop: HostLoop,
        shelf: Shelf,
        most_live: int,
    ) -> None:
        self._models = models
        self._whereabouts = whereabouts
        self._texts = texts
        self._requests = requests
        self._loop = loop
        self._shelf = shelf
        self._most_live = most_live
        self._numbers = itertools.count(1)

    async def submit(self, ask: Ask, record: CallRecord) -> Answer:
        """Return the answer under way. Raises CallerError, UnknownModelError or RefusedError; nothing runs then."""
        arrived_s = time.monotonic()
        encoded = await self._encode(ask)
        begun = [ChoiceProgress(seed=_seed(ask, choice % ask.n)) for choice in range(encoded.choices)]
        if ask.tier is not Tier.BEST_EFFORT:
            self._check_room(encoded)
            return self._begin(encoded, arrived_s, begun)[0]
        await self._shelf.put(record, ask.model, begun)
        try:
            self._check_room(encoded)
            answer, requests = self._begin(encoded, arrived_s, begun, lambda: self._shelf.left(record.id))
        except LlmhostdError:
            self._shelf.forget(record.id)
            raise
        self._shelf.watch(record.id, answer, requests)
        return answer

    async def take_up(self, ask: Ask, call: FlexCall, arrived_s: float) -> Answer:
        """Go on with a call that the end of an earlier daemon cut off. Raises as `submit`; it stays on disk then.

        Log-probabilities are not on disk: who asked for them gets the same tokens, drawn again from the first one on.
        """
        encoded = await self._encode(ask)
        again = ask.sampling.logprobs is not None
        begun = [ChoiceProgress(seed=one.seed) for one in call.choices] if again else call.choices
        answer, requests = self._begin(encoded, arrived_s, begun, accepted_before=True)
        self._shelf.watch(call.id, answer, requests)
        return answer

    async def _encode(self, ask: Ask) -> _Encoded:
        encoding = self._texts.encode(ask.model, self._models.text_of(ask.model), ask.prompts)
        weights_of = self._models.spec(ask.model).served_by
        (tokenizer, prompts), _ = await asyncio.gather(encoding, self._whereabouts.look(weights_of))
        spec = self._models.spec(ask.model)  # looked up now: it may have been removed while its prompt was encoded
        lengths = [_most_tokens(ask, spec, prompt) for prompt in prompts]
        _check_bias(ask, spec)
        return _Encoded(ask, spec, tokenizer, prompts, lengths)

    def _check_room(self, encoded: _Encoded) -> None:
        if len(self._requests) + encoded.choices > self._most_live:
            raise RefusedError(
                Refusal.OVERLOADED, f"{len(self._requests)} completions are under way already", retry_after_s=1.0
            )

    def _begin(
        self,
        encoded: _Encoded,
        arrived_s: float,
        begun: Sequence[ChoiceProgress],
        closed: Callable[[], None] | None = None,
        *,
        accepted_before: bool = False,
    ) -> tuple[Answer, list[LiveRequest]]:
        """Submit every choice that has not finished. Raises what the mind says if it refuses one."""
        ids = [RequestId(f"req-{next(self._numbers)}") for _ in begun]
        answer = Answer(encoded.choices, lambda: self._cancel(ids), closed)
        answer.prompt_tokens = sum(map(len, encoded.prompts))
        requests = [
            _request(encoded, arrived_s, request_id, choice, progress, answer, accepted_before=accepted_before)
            for choice, (request_id, progress) in enumerate(zip(ids, begun, strict=True))
        ]
        for request in requests:
            if request.finish is None:
                self._requests.add(request)
                self._loop.hear(RequestArrived(request=request.shape))
                if answer.error is not None:
                    raise answer.error
        return answer, requests

    def _cancel(self, ids: list[RequestId]) -> None:
        for request_id in ids:
            if self._requests.cancel(request_id):
                self._loop.hear(RequestCancelled(request_id=request_id))


def _request(
    encoded: _Encoded,
    arrived_s: float,
    request_id: RequestId,
    choice: int,
    progress: ChoiceProgress,
    answer: Answer,
    *,
    accepted_before: bool,
) -> LiveRequest:
    ask, number = encoded.ask, choice // encoded.ask.n
    prompt, most = encoded.prompts[number], encoded.lengths[number]
    shape = RequestShape(
        id=request_id, model=ask.model, prompt_tokens=len(prompt), max_tokens=most, tier=ask.tier,
        slo=encoded.spec.slo, arrived_s=arrived_s, tokens_out=len(progress.tokens),
        accepted_before=accepted_before,
    )  # fmt: skip
    sampling = msgspec.structs.replace(
        ask.sampling,
        max_tokens=most,
        seed=progress.seed,
        stop_token_ids=() if ask.sampling.ignore_eos else encoded.tokenizer.eos_token_ids,
    )
    request = LiveRequest(
        shape,
        prompt,
        sampling,
        tokenizer=encoded.tokenizer,
        stop=ask.stop,
        answer=answer,
        choice=choice,
        pays_for_prompt=choice % ask.n == 0,
    )
    request.take_up(progress)
    return request


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


def _seed(ask: Ask, number: int) -> int:
    """Choice n of a seeded call draws as from seed + n; others as chance will have it."""
    return ask.sampling.seed + number if ask.seeded else secrets.randbits(63)
