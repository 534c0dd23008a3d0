"""What does one instance compute next, and what came out of it?

Everything about running requests that is the same for every engine: their tokens, their KV blocks, the flat batch, the
draw. What to run is decided elsewhere (`node`); a plan that cannot be run is a mistake there, and said so.
"""

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from llmhostd.domain.errors import CallerError, EngineError
from llmhostd.domain.ids import RequestId
from llmhostd.domain.node_events import RowPlan
from llmhostd.domain.reports import RowReport, TokenLogprobs
from llmhostd.domain.request import FinishReason, Sampling
from llmhostd.engines.adapter_table import NO_SLOT, AdapterTable
from llmhostd.engines.batch import flatten
from llmhostd.engines.interface import AdaptableInstance, EngineInstance, FillingInstance, Floats, Iteration
from llmhostd.engines.sampling import TokenSampler, draw_tokens, token_logprobs
from llmhostd.loader.adapter import AdapterWeights
from llmhostd.memory.kv_blocks import KvBlocks, KvExhaustedError

_BORROWER = RequestId("")
_NOT_NUMBERS = "the model computed logits that are not numbers"

_Drawn = tuple[int, tuple[TokenLogprobs, ...]]


class PlanError(EngineError):
    """A plan does not fit the requests it names."""


class _Running:
    """One request: its context (prompt and outputs), how much of it has keys and values, and when it ends."""

    __slots__ = ("_sampler", "_stops", "adapter", "cached", "computed", "context")

    def __init__(self, context: "array[int]", adapter: AdapterWeights | None) -> None:
        """Begin staged: nothing is drawn before `draw`."""
        self.context = context
        self._sampler: TokenSampler | None = None
        self._stops: frozenset[int] = frozenset()
        self.adapter = adapter
        self.computed = 0
        self.cached = 0
        """Prefix tokens that came from the cache and were not reported yet."""

    def draw(self, sampler: TokenSampler, stops: frozenset[int]) -> None:
        """Let its tokens be drawn here from now on."""
        self._sampler, self._stops = sampler, stops

    @property
    def staged(self) -> bool:
        """Whether its tokens are drawn elsewhere: its last one is left to compute until it comes here."""
        return self._sampler is None

    @property
    def sampler(self) -> TokenSampler:
        """What draws its tokens. Raises PlanError while it is staged."""
        if self._sampler is None:
            raise PlanError("a token of a request was planned that is only staged")
        return self._sampler

    @property
    def prefills(self) -> bool:
        """Whether more than its last token is to be computed."""
        return len(self.context) - self.computed > 1

    def finish_reason(self, token: int) -> FinishReason | None:
        if token in self._stops:
            return FinishReason.STOP
        if self.sampler.drawn >= self.sampler.sampling.max_tokens:
            return FinishReason.LENGTH
        return None


class Runner:
    """The requests of one instance. One caller at a time, like the instance."""

    def __init__(self, instance: EngineInstance) -> None:
        self.instance = instance
        self._blocks = KvBlocks(instance.block_tokens)
        self._blocks.resize(instance.kv_blocks)
        self._running: dict[RequestId, _Running] = {}
        self._prefilling: dict[RequestId, _Running] = {}
        """Those with more than their last token to compute."""
        self._adaptable = instance if isinstance(instance, AdaptableInstance) and instance.adapter_slots else None
        room = self._adaptable and self._adaptable.adapter_slots
        self.adapter_slots = room.slots if room else 0
        """How many adapters one iteration may have."""
        self._adapters = AdapterTable(self.adapter_slots)

    @property
    def kv_bytes(self) -> int:
        """What the KV cache holds now."""
        return self._blocks.capacity * self.instance.kv_bytes_per_block

    @property
    def kv_used_bytes(self) -> int:
        """What requests own of it; cached prefixes are given away when needed and do not count."""
        return self._blocks.owned * self.instance.kv_bytes_per_block

    @property
    def shared_blocks(self) -> int:
        """KV blocks that requests have in common, beyond once."""
        return self._blocks.shared

    def submit(
        self,
        request_id: RequestId,
        context: Sequence[int],
        sampling: Sampling,
        tokens_out: int = 0,
        adapter: AdapterWeights | None = None,
    ) -> int:
        """Take in a request; returns how many tokens of its context are in cached blocks and were not told of yet.

        One that is staged goes on from what is computed. The last `tokens_out` tokens of `context` are outputs from
        before it moved here. It ends by STOP after a token of `sampling.stop_token_ids` or one of the model's
        end-of-text tokens, unless those are to be ignored; the token is among its outputs. `adapter`: what it is
        computed with; None: the base as it is. Raises CallerError for tokens that the model does not have, PlanError
        for an adapter where there is no room for any, and for a context that does not begin with what was staged.
        """
        architecture = self.instance.shape.architecture
        known = self._running.get(request_id)
        staged_tokens = len(known.context) if known else 0
        if known and known.context != array("q", context[:staged_tokens]):
            raise PlanError(f"{request_id} comes with another context than was staged")
        sampler = TokenSampler(sampling, architecture.vocab, context[len(context) - tokens_out :])
        cached = self.stage(request_id, context[staged_tokens:], adapter)
        ends = frozenset(architecture.eos_token_ids)
        stops = frozenset(sampling.stop_token_ids)
        self._running[request_id].draw(sampler, stops - ends if sampling.ignore_eos else stops | ends)
        return cached

    def stage(self, request_id: RequestId, tokens: Sequence[int], adapter: AdapterWeights | None = None) -> int:
        """Take in the context of a request that is to come here, or what follows of it. Returns and raises as `submit`.

        All of it but the last token may be computed, and none is drawn, until it is submitted.
        """
        one, vocab = self._running.get(request_id), self.instance.shape.architecture.vocab
        if one is None and not tokens:
            raise CallerError("the prompt is empty", field="prompt")
        if tokens and not 0 <= min(tokens) <= max(tokens) < vocab:
            raise CallerError(f"the prompt has tokens outside 0..{vocab - 1}", field="prompt")
        if one is None:
            one = self._open(request_id, array("q", tokens), adapter)
        else:
            one.context.extend(tokens)
        if one.prefills:
            self._prefilling[request_id] = one
        return one.cached

    def drop(self, request_id: RequestId) -> None:
        """Forget a request; what it computed stays cached until the blocks are needed."""
        del self._running[request_id]
        self._prefilling.pop(request_id, None)
        self._blocks.close(request_id)

    def run(self, rows: Sequence[RowPlan]) -> tuple[RowReport, ...]:
        """One iteration. Requests that end with it are dropped, adapters that it needs come into slots before.

        A request whose logits are no numbers is as it was before, and its report says so; the others go on.

        Raises KvExhaustedError or PlanError, with nothing computed, if the plan does not fit; EngineError if the engine
        fails, after which the requests may run again.
        """
        running = self._admitted(rows)
        logits = self.instance.run(self._iteration(running, rows))
        sampled = [one for one, row in zip(running, rows, strict=True) if row.sample]
        drawn = iter(self._draw(logits, sampled) if sampled else ())
        return tuple(
            self._sampled(one, row, next(drawn)) if row.sample else self._advance(one, row, None)
            for one, row in zip(running, rows, strict=True)
        )

    def begin(self, rows: Sequence[RowPlan]) -> None:
        """Compute of an iteration what there are weights for; `run` with the same rows goes on from there.

        Raises as `run`, and PlanError if the engine cannot.
        """
        if not isinstance(self.instance, FillingInstance):
            raise PlanError("an iteration was to begin where it can only run")
        self.instance.begin(self._iteration(self._admitted(rows), rows))

    def match_again(self) -> list[tuple[RequestId, int]]:
        """Look whether the last iteration computed what others wait for: of a burst with one system prompt, one pays.

        Returns (request, context tokens computed now) of those for whom it did.
        """
        matched = []
        for request_id, one in self._prefilling.items():
            reused = self._blocks.reuse(request_id, one.context)
            if reused > one.computed:
                one.cached += reused - one.computed
                one.computed = reused
                matched.append((request_id, reused))
        return matched

    def resize(self, kv_blocks: int) -> None:
        """Grow or shrink the KV cache.

        Raises KvExhaustedError if requests own more, or whatever the engine raises. What the engine really has then is
        believed: the old size, or the new one where it failed only afterwards. See `intact` for a third.
        """
        moves = self._blocks.moves_for(kv_blocks)
        try:
            self.instance.resize_kv(kv_blocks, moves)
        finally:
            if self.instance.kv_blocks == kv_blocks:
                self._blocks.resize(kv_blocks)
            else:
                self._blocks.distrust(target for _, target in moves)

    @property
    def intact(self) -> bool:
        """Whether the engine has as many blocks as the tables speak of; if not, its KV cannot be trusted."""
        return self.instance.kv_blocks == self._blocks.capacity

    @contextmanager
    def borrow_blocks(self, count: int) -> Iterator["array[int]"]:
        """Lend up to `count` blocks that no request owns, for measuring. Raises KvExhaustedError if there is none."""
        lent = min(count, self._blocks.spare)
        if not lent:
            raise KvExhaustedError(f"no KV block to measure with: requests own all {self._blocks.capacity}")
        self._blocks.open(_BORROWER, array("q"))
        self._blocks.extend(_BORROWER, lent * self.instance.block_tokens)
        try:
            yield self._blocks.table(_BORROWER)
        finally:
            self._blocks.close(_BORROWER)

    def check(self) -> None:
        """Raise AssertionError unless what must always hold, holds."""
        self._blocks.check()

    def _open(self, request_id: RequestId, context: "array[int]", adapter: AdapterWeights | None) -> _Running:
        if adapter is not None and self._adaptable is None:
            raise PlanError(f"{request_id} wants {adapter.path}; this instance was loaded without room for adapters")
        one = self._running[request_id] = _Running(context, adapter)
        computed_by = adapter.identity if adapter is not None else ""
        one.computed = one.cached = self._blocks.open(request_id, context, computed_by)
        return one

    def _admitted(self, rows: Sequence[RowPlan]) -> list[_Running]:
        """Have for an iteration what it needs."""
        running = [self._admit(row) for row in rows]
        self._place_adapters(running)
        return running

    def _admit(self, row: RowPlan) -> _Running:
        """Hold a row of a plan against its request, and have blocks for it."""
        one = self._running.get(row.request_id)
        if one is None:
            raise PlanError(f"{row.request_id} is planned, but does not run here")
        end = one.computed + row.tokens
        if row.tokens < 1 or end > len(one.context) - one.staged or row.sample != (end == len(one.context)):
            raise PlanError(
                f"{row.request_id}: {row.tokens} tokens (sample: {row.sample}) are planned,"
                f" {one.computed} of {len(one.context)} are computed"
            )
        self._blocks.extend(row.request_id, end)
        return one

    def _iteration(self, running: Sequence[_Running], rows: Sequence[RowPlan]) -> Iteration:
        parts = (
            (one.context, self._blocks.table(row.request_id), one.computed, row.tokens, row.sample)
            for one, row in zip(running, rows, strict=True)
        )
        iteration = flatten(parts, self.instance.block_tokens)
        if any(one.adapter is not None for one in running):
            slots = [self._adapters.use(one.adapter.identity) if one.adapter else NO_SLOT for one in running]
            iteration.adapters = np.array(slots, np.int32)
        return iteration

    def _place_adapters(self, running: Sequence[_Running]) -> None:
        """Have the adapters of an iteration in slots; others may go for them."""
        wanted = {one.adapter.identity: one.adapter for one in running if one.adapter is not None}
        if self._adaptable is None or not wanted:
            return
        if len(wanted) > self.adapter_slots:
            raise PlanError(f"an iteration has {len(wanted)} adapters; there are {self.adapter_slots} slots")
        for identity, weights in wanted.items():
            if identity in self._adapters:
                continue
            slot, placed = self._adapters.make_room(wanted), None
            try:
                self._adaptable.set_adapter(slot, weights)
                placed = identity
            finally:
                self._adapters.put(slot, placed)

    def _draw(self, logits: Floats, sampled: Sequence[_Running]) -> list[_Drawn | None]:
        tokens = draw_tokens(logits, [one.sampler for one in sampled])
        wanted = [one.sampler.sampling.logprobs for one in sampled]
        return [
            None if token is None else (token, () if top is None else (token_logprobs(logits[row], token, top),))
            for row, (token, top) in enumerate(zip(tokens, wanted, strict=True))
        ]

    def _sampled(self, one: _Running, row: RowPlan, drawn: _Drawn | None) -> RowReport:
        return (
            RowReport(request_id=row.request_id, failed=_NOT_NUMBERS)
            if drawn is None
            else self._advance(one, row, drawn)
        )

    def _advance(self, one: _Running, row: RowPlan, drawn: _Drawn | None) -> RowReport:
        before = one.computed
        one.computed += row.tokens
        if one.computed // self.instance.block_tokens > before // self.instance.block_tokens:
            self._blocks.seal(row.request_id, one.context, one.computed)
        cached, one.cached = one.cached, 0
        prefilled = cached + row.tokens
        if not one.prefills:
            self._prefilling.pop(row.request_id, None)
        if drawn is None:
            return RowReport(request_id=row.request_id, prefilled=prefilled, cached=cached)
        token, logprobs = drawn
        one.context.append(token)
        finish = one.finish_reason(token)
        if finish is not None:
            self.drop(row.request_id)
        return RowReport(
            request_id=row.request_id,
            prefilled=prefilled,
            cached=cached,
            tokens=(token,),
            logprobs=logprobs,
            finish=finish,
        )
