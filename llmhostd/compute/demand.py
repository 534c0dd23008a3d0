"""What does one instance want of the device next, and by when?"""

from dataclasses import dataclass, field
from typing import NamedTuple

from llmhostd.compute.workload import NEVER_S, InstanceLoad, RequestLoad
from llmhostd.domain.request import Tier


class Due(NamedTuple):
    """Device time that must be spent before a deadline, and from then on at a rate."""

    deadline_s: float
    cost_s: float
    share: float
    """Of the device, after the deadline: a decode batch wants its iteration again every TPOT; a prefill does not."""


@dataclass(slots=True)
class Decodes:
    """The latency-sensitive requests of an instance that decode, and their sums."""

    requests: list[RequestLoad] = field(default_factory=list)
    """In order of submission."""
    context_tokens: int = 0
    iteration_s: float = 0.0
    """What one token for each of them takes."""
    tpot_s: float = NEVER_S
    """The least that any of them was promised."""
    gap_s: float = NEVER_S
    """The shortest of their longest gaps."""
    deadline_s: float = NEVER_S
    """The earliest next token."""
    began_s: float = NEVER_S
    """When the pace began of the one that is due next by its pace."""
    said_tokens: int = 0
    """What that one has said."""
    ends_in_tokens: int = 0
    """After so many more, the first of them has said all that it may."""
    alike: bool = True
    """Whether all were promised the same, so that whoever is due first stays so while all get tokens together."""

    def add(self, request: RequestLoad) -> None:
        """Count one in."""
        tpot_s, said, deadline_s = request.shape.slo.tpot_s, request.tokens_out, request.deadline_s
        ends_in, began_s = request.shape.max_tokens - said, request.pace_began_s
        if not self.requests:
            self.tpot_s, self.ends_in_tokens = tpot_s, ends_in
        elif tpot_s != self.tpot_s:
            self.alike, self.tpot_s = False, min(tpot_s, self.tpot_s)
        if began_s + tpot_s * said < self.began_s + self.tpot_s * self.said_tokens:
            self.began_s, self.said_tokens = began_s, said
        self.requests.append(request)
        self.context_tokens += request.shape.prompt_tokens + said
        self.deadline_s = min(self.deadline_s, deadline_s)
        self.gap_s = min(self.gap_s, request.longest_gap_s)
        self.ends_in_tokens = min(self.ends_in_tokens, ends_in)


@dataclass(slots=True)
class Demand:
    """What one instance wants of the device next. Lists are in order of submission."""

    instance: InstanceLoad
    batch: Decodes
    prefills: list[RequestLoad]
    """Latency-sensitive requests whose context is still to be computed."""
    best_effort: list[RequestLoad]
    prefill_deadline_s: float
    """Earliest next token among `prefills`; NEVER_S when there are none."""
    best_effort_deadline_s: float
    """The same among `best_effort`, whose deadlines only order them among themselves."""
    dues: list[Due]
    """Its latency-sensitive work: the whole rest of each prefill, then the decode batch."""
    deadline_s: float
    """Earliest next token among its latency-sensitive requests; NEVER_S when it has none."""
    order: int = 0
    """Its place among equals: the longest loaded first."""

    @property
    def decodes(self) -> list[RequestLoad]:
        """Latency-sensitive requests that decode."""
        return self.batch.requests

    @property
    def decode_deadline_s(self) -> float:
        """Earliest next token among `decodes`."""
        return self.batch.deadline_s

    def after_decoding(self, at_s: float) -> "Demand | None":
        """What it wants once every decode got a token at `at_s`, and nobody anything else.

        None where sums do not tell: the first run is behind it then, somebody has said all that it may, or promises
        differ. The requests themselves are left as they are.
        """
        old = self.batch
        if old.ends_in_tokens <= 1 or not old.alike or self.instance.first_run_s:
            return None
        count, said = len(old.requests), old.said_tokens + 1
        context = old.context_tokens + count
        cost_s = self.instance.estimator.iteration_s(prefill=(), decode_batch=count, decode_context=context // count)
        deadline_s = min(old.began_s + old.tpot_s * said, at_s + old.gap_s)
        batch = Decodes(
            old.requests, context, cost_s, old.tpot_s, old.gap_s, deadline_s, old.began_s, said,
            old.ends_in_tokens - 1,
        )  # fmt: skip
        dues = [*self.dues[:-1], Due(deadline_s, cost_s, cost_s / max(old.tpot_s, 1e-6))]
        return Demand(
            self.instance, batch, self.prefills, self.best_effort, self.prefill_deadline_s,
            self.best_effort_deadline_s, dues, min(deadline_s, self.prefill_deadline_s), self.order,
        )  # fmt: skip


def demand_of(instance: InstanceLoad) -> Demand:
    """Sum up one instance's requests."""
    batch, prefills, best_effort = Decodes(), [], []
    prefill_s = best_effort_s = NEVER_S
    first_run_s, iteration_s = instance.first_run_s, instance.estimator.iteration_s
    dues: list[Due] = []
    for request in instance.requests.values():
        if request.shape.tier is Tier.BEST_EFFORT:
            best_effort.append(request)
            best_effort_s = min(best_effort_s, request.deadline_s)
        elif request.decoding:
            batch.add(request)
        else:
            deadline_s = request.deadline_s
            prefills.append(request)
            prefill_s = min(prefill_s, deadline_s)
            part = ((request.pending_tokens, request.computed_tokens),)
            cost_s = iteration_s(prefill=part, decode_batch=0, decode_context=0)
            dues.append(Due(deadline_s, cost_s + first_run_s, 0.0))
            first_run_s = 0.0
    if batch.requests:
        count = len(batch.requests)
        batch.iteration_s = iteration_s(prefill=(), decode_batch=count, decode_context=batch.context_tokens // count)
        share = batch.iteration_s / max(batch.tpot_s, 1e-6)
        dues.append(Due(batch.deadline_s, batch.iteration_s + first_run_s, share))
    return Demand(
        instance, batch, prefills, best_effort, prefill_s, best_effort_s, dues, min(prefill_s, batch.deadline_s)
    )  # fmt: skip
