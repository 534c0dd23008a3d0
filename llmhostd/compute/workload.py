"""What is a node working on, as far as its timing goes?

The node mind keeps one of these of itself; the host mind keeps one per node, fed by reports, to play it forward in
shadow validation (SLINFER §VI-C). Both therefore plan with the same code over the same picture. Mutable on purpose: it
is the state that the minds step.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import msgspec

from llmhostd.compute.adapter_turns import AdapterRoom, distinct
from llmhostd.compute.deadlines import AS_PROMISED, DeadlinePolicy
from llmhostd.compute.estimator import Estimator, SettlingEstimator
from llmhostd.domain.ids import InstanceId, RequestId
from llmhostd.domain.request import RequestShape, Tier

NEVER_S = float("inf")


@dataclass(slots=True)
class RequestLoad:
    """One request's progress. Tokens and seconds."""

    shape: RequestShape
    computed_tokens: int = 0
    """Context tokens whose KV exists, cached prefix included."""
    tokens_out: int = 0
    """Output tokens ever streamed, counting those from before a move."""
    first_token_s: float | None = None
    """When the first of them came, as far as it came here; see `RequestShape.first_token_s` for before."""
    last_token_s: float | None = None
    """When the last of them came, likewise."""
    deadlines: DeadlinePolicy = AS_PROMISED
    """How its promise becomes deadlines."""
    joined_s: float = 0.0
    """When it was assigned to its instance."""
    staged: bool = False
    """Its stream runs elsewhere and is to come here: all of its context but the last token is computed ahead, in slack,
    and no token of it is drawn (ServerlessLLM §5.3)."""

    @property
    def context_tokens(self) -> int:
        """Tokens whose KV must exist before the next output token is drawn."""
        return self.shape.prompt_tokens + self.tokens_out

    @property
    def pending_tokens(self) -> int:
        """Context tokens still to compute; 1 while decoding (the token just drawn), more while prefilling."""
        return self.shape.prompt_tokens + self.tokens_out - self.computed_tokens - self.staged

    @property
    def decoding(self) -> bool:
        """Whether the next iteration that includes it yields a token by computing one token."""
        said = self.tokens_out
        return said > 0 and self.shape.prompt_tokens + said == self.computed_tokens + 1 and not self.staged

    @property
    def latency_sensitive(self) -> bool:
        """Whether somebody waits for it here."""
        return self.shape.tier is Tier.LATENCY_SENSITIVE and not self.staged

    @property
    def deadline_s(self) -> float:
        """When the next token is due: by its pace (SLINFER eq. 1), and no later than the longest gap allows."""
        return self.due()[0]

    def due(self) -> tuple[float, float, float]:
        """Say when its next token is due, when its pace began, and its longest gap.

        The pace, its time per output token, counts from when its first token came, or ST + TTFT_SLO (+ grace). After
        the last token the next one is due within the longest gap at the latest; inf: no such bound.
        """
        shape, out, policy = self.shape, self.tokens_out, self.deadlines
        tpot_s, factor = shape.slo.tpot_s, policy.longest_gap_slo_factor
        gap_s = factor * tpot_s if factor else NEVER_S
        began_s = shape.arrived_s + shape.slo.ttft_s + shape.grace_s
        if not out:
            return began_s, began_s, gap_s
        if policy.from_first_token:
            first_s = shape.first_token_s if self.first_token_s is None else self.first_token_s
            began_s = began_s if first_s is None else first_s
        paced_s = began_s + tpot_s * out
        last_s = shape.last_token_s if self.last_token_s is None else self.last_token_s
        if last_s is None or last_s + gap_s >= paced_s:
            return paced_s, began_s, gap_s
        return last_s + gap_s, began_s, gap_s

    def headroom_s(self, now: float) -> float:
        """How long the next token can wait (SLINFER eq. 1)."""
        return self.deadline_s - now

    def further(self, tokens: int) -> "RequestLoad":
        """Copy it as if so many more tokens of its context were computed."""
        return RequestLoad(
            self.shape, self.computed_tokens + tokens, self.tokens_out, self.first_token_s, self.last_token_s,
            self.deadlines, self.joined_s, self.staged,
        )  # fmt: skip

    def moved_shape(self) -> RequestShape:
        """Say what must be submitted elsewhere for it to go on where it is now."""
        first_s, last_s = self.said_s
        return msgspec.structs.replace(
            self.shape,
            tokens_out=self.tokens_out,
            first_token_s=first_s,
            last_token_s=last_s,
            given_tokens=min(self.shape.given_tokens, self.computed_tokens),
        )

    @property
    def said_s(self) -> tuple[float | None, float | None]:
        """When it said its first token and its last, here or where it was before."""
        shape, first_s, last_s = self.shape, self.first_token_s, self.last_token_s
        return shape.first_token_s if first_s is None else first_s, shape.last_token_s if last_s is None else last_s

    def said(self, tokens: int, at_s: float) -> None:
        """Take note of output tokens."""
        if not tokens:
            return
        if not self.tokens_out:
            self.first_token_s = at_s
        self.last_token_s = at_s
        self.tokens_out += tokens


@dataclass(slots=True)
class InstanceLoad:
    """One instance's requests, in order of submission, and what its iterations cost."""

    id: InstanceId
    estimator: Estimator
    ready_at_s: float = 0.0
    """When it can compute, if it is still loading (an estimate); in the past otherwise."""
    first_run_s: float = 0.0
    """What the next iteration costs on top: weight packing of a warm instance."""
    requests: dict[RequestId, RequestLoad] = field(default_factory=dict)
    block_tokens: int = 32
    """Tokens per KV block of its engine: where chunks end."""
    room: AdapterRoom | None = None
    """Its slots for adapters; None: it has none."""

    def know(self, estimator: Estimator) -> None:
        """Plan with another profile; what packing costs, if it does, stays."""
        if isinstance(self.estimator, SettlingEstimator):
            self.estimator.settled = estimator
        else:
            self.estimator = estimator

    def ran(self, *, settled: bool, predicted_s: float, actual_s: float) -> bool:
        """Take note of an iteration; whether others like it are now expected to take another time.

        `settled`: no weights were packed beside it.
        """
        if settled:
            packed = self.settling
            self.settle()
            return packed
        if not isinstance(self.estimator, SettlingEstimator):
            self.estimator = SettlingEstimator(self.estimator)
        self.estimator.observe(predicted_s=predicted_s, actual_s=actual_s)
        return True

    @property
    def settling(self) -> bool:
        """Whether the last iteration packed weights."""
        return isinstance(self.estimator, SettlingEstimator)

    def settle(self) -> None:
        """Expect no more packing."""
        if isinstance(self.estimator, SettlingEstimator):
            self.estimator = self.estimator.settled

    def adapters_of(self, requests: Iterable[RequestLoad]) -> int:
        """Count the adapters that some of its requests name; 0 where there is no room for any."""
        return len(distinct(one.shape for one in requests)) if self.room is not None else 0

    def round_s(self, count: int, context_tokens: int, adapters: int) -> float:
        """What one token for each of `count` requests takes, which have so much context together.

        One iteration; several where more adapters than there are slots take turns.
        """
        room, iteration_s = self.room, self.estimator.iteration_s
        if room is None:
            return iteration_s(prefill=(), decode_batch=count, decode_context=context_tokens // count)
        turns = max(-(-adapters // room.slots), 1)
        each_s = iteration_s(prefill=(), decode_batch=-(-count // turns), decode_context=context_tokens // count)
        round_s = turns * each_s * room.slower(adapters)
        return round_s if turns == 1 else round_s + adapters * room.fill_s

    def slower(self, adapters: int) -> float:
        """Say how many times longer an iteration takes for so many adapters."""
        return self.room.slower(adapters) if self.room is not None else 1.0


@dataclass(slots=True)
class NodeLoad:
    """All instances of a node, in order of loading. One iteration at a time computes."""

    busy_until_s: float = 0.0
    """When the running iteration is expected to end."""
    instances: dict[InstanceId, InstanceLoad] = field(default_factory=dict)

    def copy(self) -> "NodeLoad":
        """Copy what playing forward changes."""
        instances = {
            key: replace(one, requests={k: replace(r) for k, r in one.requests.items()})
            for key, one in self.instances.items()
        }
        return NodeLoad(self.busy_until_s, instances)
