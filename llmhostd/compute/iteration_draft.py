"""What would this iteration take with one more row in it?"""

from dataclasses import dataclass

from llmhostd.compute.chunked_prefill import ChunkPolicy, largest_chunk, least_chunk
from llmhostd.compute.estimator import IterationKind
from llmhostd.compute.workload import InstanceLoad, RequestLoad
from llmhostd.domain.ids import InstanceId
from llmhostd.domain.node_events import RowPlan


@dataclass(frozen=True, slots=True)
class IterationPlan:
    """One iteration of one instance."""

    instance_id: InstanceId
    rows: tuple[RowPlan, ...]
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

    @property
    def kind(self) -> IterationKind:
        """Which of the profile's tables its duration speaks about."""
        return IterationKind.PREFILL if self.chunk_tokens else IterationKind.DECODE


class Draft:
    """An iteration in the making."""

    __slots__ = ("_batch", "_context", "_pending_tokens", "_prefill", "chunk_tokens", "instance", "rows", "seconds")

    def __init__(self, instance: InstanceLoad) -> None:
        self.instance = instance
        self.rows: list[RowPlan] = []
        self.chunk_tokens = 0
        self.seconds = 0.0
        self._prefill: tuple[tuple[int, int], ...] = ()
        self._batch = self._context = self._pending_tokens = 0

    def decode(self, requests: list[RequestLoad]) -> None:
        """Add the next token of each."""
        self.seconds = self.seconds_with_decodes(requests)
        self._batch += len(requests)
        self._context += sum(request.context_tokens for request in requests)
        self.rows += [RowPlan(request_id=request.shape.id, tokens=1, sample=True) for request in requests]

    def chunk(self, request: RequestLoad, tokens: int) -> None:
        """Add the next `tokens` of a prefill."""
        pending, past = request.pending_tokens, request.computed_tokens
        self.seconds = self._seconds_with_chunk(tokens, past)
        self._prefill += ((tokens, past),)
        self.chunk_tokens += tokens
        self._pending_tokens += pending
        self.rows.append(RowPlan(request_id=request.shape.id, tokens=tokens, sample=tokens == pending))

    def chunk_within(self, request: RequestLoad, within_s: float, policy: ChunkPolicy, *, progress: bool) -> bool:
        """Add the largest chunk with which the iteration takes at most `within_s`; the least one if it must progress.

        Returns whether the rest of the prefill fitted whole.
        """
        pending, past = request.pending_tokens, request.computed_tokens
        tokens = largest_chunk(
            lambda chunk: self._seconds_with_chunk(chunk, past), within_s,
            pending=pending, past=past, budget=policy.max_chunk_tokens - self.chunk_tokens, policy=policy,
        )  # fmt: skip
        if not tokens and progress:
            tokens = least_chunk(pending=pending, past=past, policy=policy)
        if tokens:
            self.chunk(request, tokens)
        return tokens == pending

    def seconds_with_decodes(self, requests: list[RequestLoad]) -> float:
        """What it would take with the next token of each of these in it as well."""
        context = self._context + sum(request.context_tokens for request in requests)
        return self._predicted_s(self._prefill, self._batch + len(requests), context)

    def plan(self, deadline_s: float, best_effort_s: float) -> IterationPlan | None:
        """Finish it; None when it holds no rows."""
        if not self.rows:
            return None
        return IterationPlan(
            self.instance.id, tuple(self.rows), self.seconds, best_effort_s, deadline_s, self.chunk_tokens,
            self._pending_tokens,
        )  # fmt: skip

    def _seconds_with_chunk(self, tokens: int, past: int) -> float:
        return self._predicted_s((*self._prefill, (tokens, past)), self._batch, self._context)

    def _predicted_s(self, prefill: tuple[tuple[int, int], ...], batch: int, context: int) -> float:
        iteration_s = self.instance.estimator.iteration_s(
            prefill=prefill, decode_batch=batch, decode_context=context // batch if batch else 0
        )
        return iteration_s + self.instance.first_run_s
