"""What would this iteration take with one more row in it?"""

from collections.abc import Sequence
from dataclasses import dataclass

from llmhostd.compute.adapter_turns import AdapterRoom, distinct
from llmhostd.compute.chunked_prefill import ChunkPolicy, largest_chunk, least_chunk
from llmhostd.compute.demand import Decodes, Demand
from llmhostd.compute.estimator import IterationKind
from llmhostd.compute.workload import InstanceLoad, RequestLoad
from llmhostd.domain.ids import InstanceId
from llmhostd.domain.node_events import RowDone, RowPlan


@dataclass(slots=True)
class IterationPlan:
    """One iteration of one instance. Speaks of its requests as they are: read `rows` before they change."""

    instance_id: InstanceId
    decodes: Sequence[RequestLoad]
    """Those that it begins with, and that get a token each."""
    others: Sequence[tuple[RequestLoad, int]]
    """What comes after them: requests, and how many tokens of each to compute."""
    predicted_s: float
    """First-run cost included."""
    best_effort_s: float
    """What of it best-effort rows add."""
    deadline_s: float
    """The earliest next token among the requests it was chosen for."""
    chunk_tokens: int
    """Prefill tokens in it."""
    pending_tokens: int
    """Prefill tokens that these requests still had to compute."""
    filling_s: float = 0.0
    """What of it goes into putting adapters into slots."""

    @property
    def adapters(self) -> tuple[str, ...]:
        """Those that its requests name."""
        return distinct(one.shape for one in (*self.decodes, *(one for one, _ in self.others)))

    @property
    def rows(self) -> tuple[RowPlan, ...]:
        """What to compute, request by request."""
        return (
            *(RowPlan(request_id=one.shape.id, tokens=1, sample=True) for one in self.decodes),
            *(
                RowPlan(request_id=one.shape.id, tokens=tokens, sample=tokens == one.pending_tokens and not one.staged)
                for one, tokens in self.others
            ),
        )

    def gave_each_a_token(self, done: Sequence[RowDone]) -> bool:
        """Whether it was of decodes alone, and each of them got its next token."""
        return not self.others and len(done) == len(self.decodes) and all(row.new_tokens == 1 for row in done)

    @property
    def kind(self) -> IterationKind:
        """Which of the profile's tables its duration speaks about."""
        return IterationKind.PREFILL if self.chunk_tokens else IterationKind.DECODE


def next_tokens(demand: Demand) -> IterationPlan:
    """Plan an iteration of an instance's decodes and nothing else, whose sums are known."""
    seconds = demand.batch.iteration_s + demand.instance.first_run_s
    return IterationPlan(demand.instance.id, demand.batch.requests, (), seconds, 0.0, demand.deadline_s, 0, 0)


class Draft:
    """An iteration in the making."""

    __slots__ = (
        "_batch", "_context", "_decodes", "_extra_s", "_filling_s", "_others", "_pending_tokens", "_prefill",
        "_slower", "chunk_tokens", "instance", "seconds",
    )  # fmt: skip

    def __init__(self, instance: InstanceLoad, requests: Sequence[RequestLoad] = ()) -> None:
        """Begin with no row. `requests`: those that may be in it, whose adapters take time."""
        self.instance = instance
        self._filling_s, self._slower = 0.0, 1.0
        if instance.room is not None:
            self._filling_s, self._slower = _adapters_take(instance.room, distinct(one.shape for one in requests))
        self._extra_s = instance.first_run_s + self._filling_s
        self.chunk_tokens = 0
        self.seconds = 0.0
        self._decodes: Sequence[RequestLoad] = ()
        self._others: list[tuple[RequestLoad, int]] = []
        self._prefill: tuple[tuple[int, int], ...] = ()
        self._batch = self._context = self._pending_tokens = 0

    @property
    def size(self) -> int:
        """How many requests are in it."""
        return len(self._decodes) + len(self._others)

    def begin(self, decodes: Decodes) -> None:
        """Begin with the next token of each of a batch, whose sums are known."""
        self._decodes = decodes.requests
        self._batch, self._context = len(decodes.requests), decodes.context_tokens
        self.seconds = decodes.iteration_s * (self._slower / decodes.slower) + self._extra_s

    def decode(self, requests: list[RequestLoad]) -> None:
        """Add the next token of each."""
        self.seconds = self.seconds_with_decodes(requests)
        self._batch += len(requests)
        self._context += sum(request.context_tokens for request in requests)
        self._others += [(request, 1) for request in requests]

    def chunk(self, request: RequestLoad, tokens: int) -> None:
        """Add the next `tokens` of a prefill."""
        pending, past = request.pending_tokens, request.computed_tokens
        self.seconds = self.seconds_with_chunk(tokens, past)
        self._prefill += ((tokens, past),)
        self.chunk_tokens += tokens
        self._pending_tokens += pending
        self._others.append((request, tokens))

    def chunk_within(self, request: RequestLoad, within_s: float, policy: ChunkPolicy, *, progress: bool) -> bool:
        """Add the largest chunk with which the iteration takes at most `within_s`; the least one if it must progress.

        Returns whether the rest of the prefill fitted whole.
        """
        if within_s < self.seconds and not progress:
            return False
        pending, past = request.pending_tokens, request.computed_tokens
        tokens = largest_chunk(
            lambda chunk: self.seconds_with_chunk(chunk, past), within_s,
            pending=pending, past=past, budget=policy.max_chunk_tokens - self.chunk_tokens, policy=policy,
            block_tokens=self.instance.block_tokens,
        )  # fmt: skip
        if not tokens and progress:
            block_tokens = self.instance.block_tokens
            tokens = least_chunk(pending=pending, past=past, policy=policy, block_tokens=block_tokens)
        if tokens:
            self.chunk(request, tokens)
        return tokens == pending

    def seconds_with_decodes(self, requests: list[RequestLoad]) -> float:
        """What it would take with the next token of each of these in it as well."""
        context = self._context + sum(request.context_tokens for request in requests)
        return self._predicted_s(self._prefill, self._batch + len(requests), context)

    def seconds_with_chunk(self, tokens: int, past: int) -> float:
        """What it would take with so many tokens of a prefill after so many others in it as well."""
        return self._predicted_s((*self._prefill, (tokens, past)), self._batch, self._context)

    def plan(self, deadline_s: float, best_effort_s: float) -> IterationPlan | None:
        """Finish it; None when it holds no rows."""
        if not self._decodes and not self._others:
            return None
        plan = IterationPlan(
            self.instance.id, self._decodes, self._others, self.seconds, best_effort_s, deadline_s, self.chunk_tokens,
            self._pending_tokens,
        )  # fmt: skip
        if (room := self.instance.room) is not None:  # adapters that got no row are not paid for
            plan.filling_s, slower = _adapters_take(room, plan.adapters)
            own_s = (self.seconds - self._extra_s) * (slower / self._slower)
            plan.predicted_s = own_s + self.instance.first_run_s + plan.filling_s
            plan.best_effort_s = min(best_effort_s, plan.predicted_s)
        return plan

    def _predicted_s(self, prefill: tuple[tuple[int, int], ...], batch: int, context: int) -> float:
        iteration_s = self.instance.estimator.iteration_s(
            prefill=prefill, decode_batch=batch, decode_context=context // batch if batch else 0
        )
        return iteration_s * self._slower + self._extra_s


def _adapters_take(room: AdapterRoom, adapters: Sequence[str]) -> tuple[float, float]:
    """Say what filling their slots adds to an iteration, and how many times longer the rest of it takes."""
    return room.filling_s(adapters), room.slower(len(adapters))
