"""What does one instance want of the device next, and by when?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec

from llmhostd.compute.adapter_turns import Wish, distinct
from llmhostd.compute.workload import NEVER_S, InstanceLoad, RequestLoad
from llmhostd.domain.ids import RequestId
from llmhostd.domain.request import Tier

BEFORE_BEST_EFFORT_S = float("-inf")
"""The deadline among best effort of a request that is staged: somebody waits for it, though not here."""


class IterationSeconds(Protocol):
    """`Estimator.iteration_s`."""

    def __call__(self, *, prefill: tuple[tuple[int, int], ...], decode_batch: int, decode_context: int) -> float:
        """Seconds of one iteration."""
        ...


class Due(NamedTuple):
    """Device time that must be spent before a deadline, and from then on at a rate."""

    deadline_s: float
    cost_s: float
    share: float
    """Of the device, after the deadline: a decode batch wants its iteration again every TPOT; a prefill does not."""
    promised_s: float
    """The deadline that was promised, which a first token may be too late for."""


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
    slower: float = 1.0
    """How many times longer an iteration takes for their adapters."""

    @property
    def due(self) -> Due:
        """The batch as work to be done, once it ran before."""
        return Due(self.deadline_s, self.iteration_s, self.iteration_s / max(self.tpot_s, 1e-6), self.deadline_s)

    def tokens_due(self, now: float, until_s: float) -> int:
        """How many iterations it needs by `until_s` at least; none where somebody is late already."""
        deadline_s, tpot_s = self.deadline_s, self.tpot_s
        if not now <= deadline_s <= until_s:
            return 0
        if not self.alike:
            return 1
        paced_s = self.began_s + tpot_s * self.said_tokens
        by_pace = 1 + int((until_s - paced_s) / tpot_s) if paced_s <= until_s else 0
        by_gap = 1 + int((until_s - deadline_s) / self.gap_s)
        return min(max(by_pace, by_gap), self.ends_in_tokens)

    def advance(self, at_s: float, iteration_s: IterationSeconds) -> bool:
        """All of them got a token at `at_s`, of which the requests themselves need not know.

        False, and nothing changes, where sums do not tell: somebody has said all that it may, or promises differ.
        """
        if self.ends_in_tokens <= 1 or not self.alike:
            return False
        count = len(self.requests)
        self.said_tokens += 1
        self.ends_in_tokens -= 1
        self.context_tokens += count
        context = self.context_tokens // count
        self.iteration_s = iteration_s(prefill=(), decode_batch=count, decode_context=context) * self.slower
        paced_s, gap_ends_s = self.began_s + self.tpot_s * self.said_tokens, at_s + self.gap_s
        self.deadline_s = min(paced_s, gap_ends_s)
        return True


@dataclass(slots=True)
class Demand:
    """What one instance wants of the device next. Lists are in order of submission."""

    instance: InstanceLoad
    batch: Decodes
    prefills: list[RequestLoad]
    """Latency-sensitive requests whose context is still to be computed."""
    best_effort: list[RequestLoad]
    """And those staged whose context is still to be computed."""
    best_effort_deadline_s: float
    """Earliest next token among `best_effort`, whose deadlines only order them among themselves."""
    dues: list[Due]
    """Its latency-sensitive work: the whole rest of each prefill, then the decode batch."""
    prefill_deadline_s: float = NEVER_S
    """Earliest next token among `prefills`; NEVER_S when there are none."""
    deadline_s: float = NEVER_S
    """Earliest next token among its latency-sensitive requests; NEVER_S when it has none."""
    order: int = 0
    """Its place among equals: the longest loaded first."""
    least_early_s: float | None = None
    """What an iteration ahead of its turn takes at least, once somebody asked (`iteration_plan`)."""
    adapters: tuple[str, ...] = ()
    """Those that its requests name, people's first."""
    in_time_until_s: float = NEVER_S
    """When the first of its prefills that can be in time must have begun for that."""
    late: int = 0
    """How many first tokens cannot be in time any more."""

    @property
    def crowded(self) -> bool:
        """Whether its requests name more adapters than it has slots."""
        return bool(self.adapters) and self.instance.room is not None and len(self.adapters) > self.instance.room.slots

    def wishes(self) -> Iterator[Wish]:
        """When the requests of each adapter need it; a prefill, by when it must have begun."""
        for prefill, due in zip(self.prefills, self.dues, strict=False):
            if prefill.shape.adapter:
                yield Wish(prefill.shape.adapter, due.deadline_s - due.cost_s, waited_for=True)
        for decode in self.batch.requests:
            if decode.shape.adapter:
                yield Wish(decode.shape.adapter, decode.deadline_s, waited_for=True)
        for one in self.best_effort:
            if one.shape.adapter:
                yield Wish(one.shape.adapter, one.deadline_s, waited_for=False)

    @property
    def decodes(self) -> list[RequestLoad]:
        """Latency-sensitive requests that decode."""
        return self.batch.requests

    @property
    def decode_deadline_s(self) -> float:
        """Earliest next token among `decodes`."""
        return self.batch.deadline_s

    def least_work_s(self, now: float, until_s: float, *, but: RequestLoad | None = None) -> float:
        """Device time that it cannot do without from `now` to `until_s` if nobody is to be late who is not so yet.

        Decodes and prefills are not added up: in iterations of both, either may ride for almost nothing. One prefill
        may be left out.
        """
        decode_s, prefill_s = self.batch.tokens_due(now, until_s) * self.batch.iteration_s, 0.0
        for one, due in zip(self.prefills, self.dues, strict=False) if self.prefills else ():
            if one is not but and now <= due.deadline_s <= until_s:
                prefill_s += due.cost_s
        return max(prefill_s, decode_s) if prefill_s else decode_s

    def advance(self, at_s: float, *, decoded: bool, chunked: Sequence[tuple[RequestLoad, RequestLoad]] = ()) -> bool:
        """An iteration ended at `at_s` in which nobody got a first token.

        `decoded`: every decode got its next token, of which the requests themselves need not know. `chunked`: prefills
        of which more is computed, as they were and as they are. False, and nothing changes, where sums do not tell: the
        first run is behind it then, somebody has said all that it may, promises differ, or prefills are not its own.
        """
        if self.instance.first_run_s or self.crowded:
            return False
        places = [self._place(old) for old, _ in chunked]
        iteration_s = self.instance.estimator.iteration_s
        if -1 in places or (decoded and not self.batch.advance(at_s, iteration_s)):
            return False
        if decoded:
            self.dues[-1] = self.batch.due
        for place, (_, new) in zip(places, chunked, strict=True):
            part = ((new.pending_tokens, new.computed_tokens),)
            cost_s = iteration_s(prefill=part, decode_batch=0, decode_context=0)
            self.prefills[place], self.dues[place] = new, self.dues[place]._replace(cost_s=cost_s)
        self.least_early_s = None
        if chunked:
            self.put_off()
        else:
            self.deadline_s = min(self.batch.deadline_s, self.prefill_deadline_s)
        return True

    def put_off(self, now: float = -NEVER_S) -> None:
        """Let first tokens that cannot be in time any more be due later, and look at its deadlines anew."""
        self.prefill_deadline_s = self.in_time_until_s = NEVER_S
        self.late, self.least_early_s = 0, None
        for place, one in enumerate(self.prefills):
            due, more_s = self.dues[place], put_off_s(one)
            deadline_s, begins_s = due.promised_s, due.promised_s - due.cost_s
            if more_s and now > begins_s:
                deadline_s += more_s
                self.late += 1
            elif more_s and begins_s < self.in_time_until_s:
                self.in_time_until_s = begins_s
            if deadline_s != due.deadline_s:
                self.dues[place] = due._replace(deadline_s=deadline_s)
            self.prefill_deadline_s = min(self.prefill_deadline_s, deadline_s)
        self.deadline_s = min(self.batch.deadline_s, self.prefill_deadline_s)

    def in_order(self, prefills: list[RequestLoad]) -> list[tuple[float, RequestLoad]]:
        """Put some of its prefills in order of when they are due; in order of submission among equals."""
        due_s = {one.shape.id: due.deadline_s for one, due in zip(self.prefills, self.dues, strict=False)}
        return sorted(((due_s[one.shape.id], one) for one in prefills), key=_deadline)

    def _place(self, prefill: RequestLoad) -> int:
        return next((k for k, one in enumerate(self.prefills) if one is prefill), -1)


def demand_of(instance: InstanceLoad) -> Demand:
    """Sum up one instance's requests."""
    decodes: list[RequestLoad] = []
    prefills: list[RequestLoad] = []
    best_effort: list[RequestLoad] = []
    best_effort_s = NEVER_S
    first_run_s, iteration_s = instance.first_run_s, instance.estimator.iteration_s
    dues: list[Due] = []
    for request in instance.requests.values():
        if request.staged:
            if request.pending_tokens:
                best_effort.append(request)
                best_effort_s = BEFORE_BEST_EFFORT_S
        elif request.shape.tier is Tier.BEST_EFFORT:
            best_effort.append(request)
            best_effort_s = min(best_effort_s, request.deadline_s)
        elif request.decoding:
            decodes.append(request)
        else:
            prefills.append(request)
            part = ((request.pending_tokens, request.computed_tokens),)
            cost_s = iteration_s(prefill=part, decode_batch=0, decode_context=0)
            deadline_s = request.deadline_s
            dues.append(Due(deadline_s, cost_s + first_run_s, 0.0, deadline_s))
            first_run_s = 0.0
    batch = Decodes()
    if decodes:
        batch = decodes_of(instance, decodes)
        due = batch.due
        dues.append(due._replace(cost_s=due.cost_s + first_run_s) if first_run_s else due)
    adapters = distinct(one.shape for one in (*prefills, *decodes, *best_effort)) if instance.room else ()
    demand = Demand(instance, batch, prefills, best_effort, best_effort_s, dues, adapters=adapters)
    demand.put_off()
    return demand


def put_off_s(prefill: RequestLoad) -> float:
    """How much later its first token is due once it cannot be in time any more; 0.0: it keeps its place.

    A stream that is behind keeps its own: it can catch up.
    """
    return 0.0 if prefill.tokens_out else prefill.deadlines.late_first_token_slo_factor * prefill.shape.slo.ttft_s


def put_off(instance: InstanceLoad, now: float) -> dict[RequestId, RequestLoad]:
    """Picture those whose first tokens could not be in time even if nobody else got anything: they are due later."""
    late: dict[RequestId, RequestLoad] = {}
    first_run_s = instance.first_run_s
    for request in instance.requests.values():
        if not request.latency_sensitive or request.decoding:
            continue
        if put_off_s(request):
            part = ((request.pending_tokens, request.computed_tokens),)
            cost_s = instance.estimator.iteration_s(prefill=part, decode_batch=0, decode_context=0)
            if now > request.deadline_s - (cost_s + first_run_s):
                late[request.shape.id] = copy = request.further(0)
                grace_s = request.shape.grace_s + put_off_s(request)
                copy.shape = msgspec.structs.replace(request.shape, grace_s=grace_s)
        first_run_s = 0.0
    return late


def _deadline(pair: tuple[float, RequestLoad]) -> float:
    return pair[0]


def decodes_of(instance: InstanceLoad, requests: list[RequestLoad]) -> Decodes:
    """Sum up those of an instance that decode, at least one; in order of submission."""
    least_tpot_s = requests[0].shape.slo.tpot_s
    least_gap_s = first_due_s = pace_began_s = first_paced_s = NEVER_S
    context, pace_said, alike, ends_in = 0, 0, True, requests[0].shape.max_tokens
    for request in requests:
        shape, said = request.shape, request.tokens_out
        due_s, began_s, gap_s = request.due()
        tpot_s = shape.slo.tpot_s
        context += shape.prompt_tokens + said
        if tpot_s != least_tpot_s:
            alike, least_tpot_s = False, min(tpot_s, least_tpot_s)
        if (paced_s := began_s + tpot_s * said) < first_paced_s:
            first_paced_s, pace_began_s, pace_said = paced_s, began_s, said
        if due_s < first_due_s:
            first_due_s = due_s
        if gap_s < least_gap_s:
            least_gap_s = gap_s
        if shape.max_tokens - said < ends_in:
            ends_in = shape.max_tokens - said
    adapters = instance.adapters_of(requests)
    iteration_s = instance.round_s(len(requests), context, adapters)
    return Decodes(
        requests, context, iteration_s, least_tpot_s, least_gap_s, first_due_s, pace_began_s, pace_said, ends_in, alike,
        instance.slower(adapters),
    )  # fmt: skip
