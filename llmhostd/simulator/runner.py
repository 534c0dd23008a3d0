"""Which tokens come out of an iteration, and how long did it take, if nothing is computed?"""

from collections.abc import Sequence
from dataclasses import dataclass

from llmhostd.compute.estimator import ProfiledEstimator
from llmhostd.domain.ids import RequestId
from llmhostd.domain.node_events import RowPlan
from llmhostd.domain.profile import Profile
from llmhostd.domain.reports import RowReport
from llmhostd.domain.request import FinishReason, RequestShape


@dataclass(slots=True)
class _Running:
    """One request. Tokens."""

    prompt: int
    out: int
    most: int
    answer: int
    """How long the answer will be, which no mind knows."""
    computed: int = 0


class CountingRunner:
    """One instance: its requests, its KV blocks, and its true profile."""

    def __init__(self, profile: Profile, kv_bytes_per_token: int, block_tokens: int) -> None:
        self.profile = profile
        self.block_tokens = block_tokens
        self.block_bytes = kv_bytes_per_token * block_tokens
        self.kv_blocks = 0
        self.kv_reserved_bytes = 0
        self.decoded = 0
        """Tokens of the last iteration that were not the first of their answer."""
        self.resident = False
        self._truth = ProfiledEstimator(profile)
        self._requests: dict[RequestId, _Running] = {}

    @property
    def held_bytes(self) -> int:
        """Beside KV."""
        return self.profile.resident_bytes if self.resident else self.profile.warm_bytes

    @property
    def pool_bytes(self) -> int:
        """What its KV pool holds."""
        return max(self.kv_blocks * self.block_bytes, self.kv_reserved_bytes)

    @property
    def kv_used_bytes(self) -> int:
        """In blocks that hold tokens."""
        return sum(-(-one.computed // self.block_tokens) for one in self._requests.values()) * self.block_bytes

    def submit(self, shape: RequestShape, answer: int) -> None:
        """Take a request, with the tokens that it has streamed already."""
        self._requests[shape.id] = _Running(
            shape.prompt_tokens, shape.tokens_out, shape.max_tokens, answer, shape.given_tokens
        )

    def bring(self, shape: RequestShape) -> None:
        """Know the tokens that a staged request said elsewhere meanwhile."""
        self._requests[shape.id].out = shape.tokens_out

    def drop(self, request_id: RequestId) -> None:
        """Forget a request."""
        del self._requests[request_id]

    def rest(self) -> None:
        """Be as just compiled. Its requests, which wait for it, stay."""
        self.resident, self.kv_blocks = False, 0

    def seconds(self, rows: Sequence[RowPlan]) -> float:
        """Say what the profile says of an iteration, and of packing the weights when it is the first."""
        prefill: list[tuple[int, int]] = []
        batch = context = 0
        for row in rows:
            one = self._requests[row.request_id]
            if row.tokens == 1 and one.out:
                batch, context = batch + 1, context + one.computed + 1
            else:
                prefill.append((row.tokens, one.computed))
        packing_s = 0.0 if self.resident else self.profile.first_run_s
        mean_context = context // batch if batch else 0
        return packing_s + self._truth.iteration_s(
            prefill=tuple(prefill), decode_batch=batch, decode_context=mean_context
        )

    def run(self, rows: Sequence[RowPlan]) -> tuple[RowReport, ...]:
        """Count what an iteration did. Token ids are their positions, so that a lost or doubled one would show."""
        self.resident, self.decoded = True, 0
        return tuple(self._advance(row) for row in rows)

    def _advance(self, row: RowPlan) -> RowReport:
        one = self._requests[row.request_id]
        one.computed += row.tokens
        if one.computed > one.prompt + one.out:
            raise AssertionError(f"{row.request_id}: computed {one.computed} of {one.prompt + one.out} context tokens")
        if not row.sample:
            return RowReport(request_id=row.request_id, prefilled=row.tokens)
        token = one.out
        one.out += 1
        self.decoded += token > 0
        finish = None
        if one.out >= min(one.answer, one.most):
            finish = FinishReason.STOP if one.out == one.answer else FinishReason.LENGTH
            self.drop(row.request_id)
        return RowReport(request_id=row.request_id, prefilled=row.tokens, tokens=(token,), finish=finish)
