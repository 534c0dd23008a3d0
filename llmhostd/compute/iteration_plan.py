"""What does the next iteration compute? One instance's rows, in OmniServe's order (§3.3.2).

Latency-sensitive decodes, then their prefill chunks, then best-effort prefill, then best-effort decodes; each only as
far as every latency-sensitive deadline of the node allows. The node mind runs these plans, and shadow validation plays
the same plans forward.
"""

from dataclasses import dataclass, field

from llmhostd.compute.adapter_turns import in_turn
from llmhostd.compute.chunked_prefill import ChunkPolicy
from llmhostd.compute.deadlines import DeadlinePolicy
from llmhostd.compute.demand import BEFORE_BEST_EFFORT_S, Demand
from llmhostd.compute.headroom import Agenda, HeadroomPolicy
from llmhostd.compute.iteration_draft import Draft, IterationPlan, next_tokens
from llmhostd.compute.workload import NEVER_S, RequestLoad


@dataclass(frozen=True, slots=True)
class IterationPolicy:
    """How much one iteration takes on."""

    max_batch: int = 64
    """Requests per iteration at most; beyond it, those with the least headroom come first."""
    mixed: bool = True
    """Prefill chunks share iterations with decodes. False: an iteration is either the decodes of an instance or one of
    its prefills, whichever has the least headroom, as in SLINFER (§VI-A)."""
    first_tokens_early: bool = True
    """A prefill runs ahead of decodes that have less headroom, if nobody will be late for it: first tokens come sooner
    and batches are fuller. False: strictly by least headroom, as SLINFER (§VI-A)."""
    best_effort_iteration_s: float = 0.1
    """Longest iteration of best-effort work alone: what a person who arrives meanwhile may have to wait."""
    best_effort_reserve_s: float = 0.5
    """Best-effort work leaves every latency-sensitive request at least this much headroom, so that newcomers fit."""
    staging_reserve_s: float = 0.05
    """The same of contexts that are computed ahead for streams that are to come here (live migration)."""
    best_effort_share: float = 0.25
    """Device time that both may take, per second of latency-sensitive work, while somebody waits."""
    best_effort_saved_s: float = 1.0
    """How much of its share best-effort work can save up: enough for the first run of a warm model."""
    measuring_reserve_s: float = 0.5
    """A model that was never measured, and is waited for, is measured while the others have this much slack."""
    adapter_turn_s: float = 0.2
    """Where requests name more adapters than their base has slots: an adapter gives its slot to one that is due this
    much before it, or due before it and within this time."""


@dataclass(frozen=True, slots=True)
class SchedulingPolicy:
    """What whoever plans iterations, or plays them forward, must agree on."""

    deadlines: DeadlinePolicy = field(default_factory=DeadlinePolicy)
    headroom: HeadroomPolicy = field(default_factory=HeadroomPolicy)
    chunk: ChunkPolicy = field(default_factory=ChunkPolicy)
    iteration: IterationPolicy = field(default_factory=IterationPolicy)


def next_plan(
    agenda: Agenda, now: float, policy: SchedulingPolicy, *, best_effort_s: float = 0.0
) -> IterationPlan | None:
    """Plan the node's next iteration; None when no instance can compute anything.

    `best_effort_s` is how long best-effort work may hold the device now although somebody waits; without anybody
    waiting it runs in any case, in iterations of bounded length.
    """
    urgent = agenda.most_urgent(now)
    if urgent is None:
        idle = agenda.most_urgent_best_effort(now)
        return None if idle is None else best_effort_plan(idle, now, policy, policy.iteration.best_effort_iteration_s)
    if best_effort_s > 0.0:
        turn = _best_effort_turn(agenda, now, policy, best_effort_s)
        if turn is not None:
            return turn
    if policy.iteration.first_tokens_early:
        early = _early_first_token(urgent, agenda, now, policy)
        if early is not None:
            return early
    return plan_for(urgent, agenda, now, policy, best_effort_s=best_effort_s)


def plan_for(
    demand: Demand, agenda: Agenda, now: float, policy: SchedulingPolicy, *, best_effort_s: float = 0.0
) -> IterationPlan | None:
    """Plan an iteration for the latency-sensitive requests of one instance, and what rides along."""
    if _only_decodes(demand, policy) and not (demand.best_effort and best_effort_s > 0.0):
        return next_tokens(demand)
    decodes, prefills, best_effort = _turn(demand, now, policy)
    if not policy.iteration.mixed:
        best_effort_s = 0.0
        if prefills and (not decodes or demand.prefill_deadline_s < demand.decode_deadline_s):
            decodes, prefills = [], [one for _, one in demand.in_order(prefills)[:1]]
        else:
            prefills = []
    rides = bool(best_effort) and best_effort_s > 0.0
    draft = Draft(demand.instance, (*decodes, *prefills, *(best_effort if rides else ())))
    if decodes:
        _add_decodes(draft, demand, decodes, policy.iteration.max_batch - bool(prefills))
    if not prefills and not rides:
        return draft.plan(demand.deadline_s, 0.0)
    own_s = demand.decode_deadline_s - now - policy.headroom.reserve_s
    waits_s = demand.decode_deadline_s if decodes else NEVER_S
    if own_s < draft.seconds and waits_s < demand.prefill_deadline_s:
        return draft.plan(demand.deadline_s, 0.0)  # no prefill must progress, and the decodes can bear none
    within_s = min(own_s, agenda.slack_s(now, policy.headroom, but=demand.instance.id, enough_s=draft.seconds))
    whole, within_s = _add_prefills(draft, waits_s, demand.in_order(prefills), now, within_s, policy)
    own_s = draft.seconds
    if whole and rides:
        _add_riders(draft, best_effort, within_s, own_s + best_effort_s, policy)
    return draft.plan(demand.deadline_s, draft.seconds - own_s)


def best_effort_plan(
    demand: Demand, now: float, policy: SchedulingPolicy, within_s: float, *, only_staged: bool = False
) -> IterationPlan | None:
    """Plan an iteration of best-effort requests alone: every decode, and the largest chunk that fits beside them.

    What is staged comes before other prefills; `only_staged`: alone.
    """
    best_effort = [one for one in _turn(demand, now, policy)[2] if one.staged or not only_staged]
    decodes = [request for request in best_effort if request.decoding]
    prefills = [request for request in best_effort if not request.decoding]
    draft = Draft(demand.instance, best_effort)
    most = policy.iteration.max_batch
    if decodes:
        draft.decode(_nearest(decodes, most - 1 if prefills else most))
    for request in sorted(_nearest(prefills, most - draft.size), key=_not_staged):
        if not draft.chunk_within(request, within_s, policy.chunk, progress=not draft.chunk_tokens):
            break
    return draft.plan(demand.best_effort_deadline_s, draft.seconds)


def describe(plan: IterationPlan, agenda: Agenda, now: float) -> str:
    """Say why this instance and this chunk."""
    parts = [f"headroom {_milliseconds(plan.deadline_s - now)}"]
    alone = plan.best_effort_s >= plan.predicted_s
    if alone:
        parts = ["best effort"]
    elif plan.best_effort_s > 0.0:
        parts.append(f"best effort adds {_milliseconds(plan.best_effort_s)}")
    after = agenda.most_urgent(now, but=plan.instance_id)
    if after is not None and after.deadline_s < plan.deadline_s and not alone:
        parts.append(f"its first token keeps {after.instance.id} at {_milliseconds(after.deadline_s - now)} in time")
    elif after is not None:
        parts.append(f"next is {after.instance.id} at {_milliseconds(after.deadline_s - now)}")
    elif alone:
        parts.append("nobody waits")
    if plan.chunk_tokens:
        parts.append(f"chunk {plan.chunk_tokens} of {plan.pending_tokens}")
    if (demand := agenda.demand(plan.instance_id)).late and not alone:
        parts.append(f"first tokens that cannot be in time any more: {demand.late}")
    if demand.crowded:
        waiting = [one for one in demand.adapters if one not in plan.adapters]
        parts.append(f"adapters that wait for a slot: {len(waiting)}")
    elif plan.filling_s:
        parts.append(f"filling adapter slots takes {_milliseconds(plan.filling_s)}")
    return "; ".join(parts)


def _only_decodes(demand: Demand, policy: SchedulingPolicy) -> bool:
    """Whether all that an instance's people want is the next token of each, and one iteration gives them that."""
    return (
        not demand.prefills
        and 0 < len(demand.batch.requests) <= policy.iteration.max_batch
        and demand.instance.room is None
    )


def _turn(
    demand: Demand, now: float, policy: SchedulingPolicy
) -> tuple[list[RequestLoad], list[RequestLoad], list[RequestLoad]]:
    """Say which decodes, prefills and best effort an iteration may have: all, unless its adapters are too many."""
    everybody = demand.decodes, demand.prefills, demand.best_effort
    room = demand.instance.room
    if room is None or not demand.crowded:
        return everybody
    chosen = in_turn(demand.wishes(), room, now, policy.iteration.adapter_turn_s)
    decodes, prefills, best_effort = (
        [one for one in requests if not one.shape.adapter or one.shape.adapter in chosen] for requests in everybody
    )
    return decodes, prefills, best_effort


def _add_decodes(draft: Draft, demand: Demand, decodes: list[RequestLoad], most: int) -> None:
    """Begin with decodes of an instance, as many as an iteration takes."""
    if decodes is demand.decodes and len(decodes) <= most and not demand.crowded:
        draft.begin(demand.batch)
    else:
        draft.decode(_nearest(decodes, most))


def _add_prefills(
    draft: Draft,
    waits_s: float,
    prefills: list[tuple[float, RequestLoad]],
    now: float,
    within_s: float,
    policy: SchedulingPolicy,
) -> tuple[bool, float]:
    """Add prefill chunks, in order of when they are due, until one does not fit whole.

    Returns whether all fit, and how long the iteration may take then. The first one progresses in any case if no decode
    in the iteration is due before it (`waits_s`); a decode that cannot bear it runs alone now and bears more next time.
    """
    for deadline_s, request in prefills[: policy.iteration.max_batch - draft.size]:
        progress = not draft.chunk_tokens and deadline_s <= waits_s
        if not draft.chunk_within(request, within_s, policy.chunk, progress=progress):
            return False, within_s
        own_s = deadline_s - now - policy.headroom.reserve_s
        if own_s >= draft.seconds:  # its first token comes when the iteration ends: later chunks must not make it late
            within_s = min(within_s, own_s)
    return True, within_s


def _add_riders(
    draft: Draft, requests: list[RequestLoad], slack_s: float, share_s: float, policy: SchedulingPolicy
) -> None:
    """Add what is staged, then best effort, while the iteration takes at most `share_s` and leaves each its reserve."""
    within_s = min(slack_s - policy.iteration.staging_reserve_s, share_s)
    for request in _nearest([one for one in requests if one.staged], policy.iteration.max_batch - draft.size):
        if not draft.chunk_within(request, within_s, policy.chunk, progress=False):
            return
    within_s = min(slack_s - policy.iteration.best_effort_reserve_s, share_s)
    _add_best_effort(draft, [one for one in requests if not one.staged], within_s, policy)


def _add_best_effort(draft: Draft, requests: list[RequestLoad], within_s: float, policy: SchedulingPolicy) -> None:
    """Add best-effort prefill chunks, then best-effort decodes, while the iteration takes at most `within_s`."""
    most = policy.iteration.max_batch
    for request in _nearest([r for r in requests if not r.decoding], most - draft.size):
        if not draft.chunk_within(request, within_s, policy.chunk, progress=False):
            break
    decodes = _nearest([r for r in requests if r.decoding], most - draft.size)
    while decodes and draft.seconds_with_decodes(decodes) > within_s:
        decodes = decodes[: len(decodes) // 2]
    if decodes:
        draft.decode(decodes)


def _early_first_token(urgent: Demand, agenda: Agenda, now: float, policy: SchedulingPolicy) -> IterationPlan | None:
    """Plan an iteration of another instance than the most urgent, for a first token that costs nobody a deadline."""
    demand = agenda.most_urgent_prefill(now)
    if demand is None or demand is urgent:
        return None
    own_s = urgent.deadline_s - now - policy.headroom.reserve_s  # who is late already limits no slack, but goes first
    least_s = demand.least_early_s
    if least_s is None:
        least_s = demand.least_early_s = _least_early_s(demand, policy)
    if own_s <= 0.0 or own_s < least_s:
        return None
    within_s = min(own_s, agenda.slack_s(now, policy.headroom, but=demand.instance.id, enough_s=least_s))
    if within_s <= 0.0 or within_s < least_s:
        return None
    plan = plan_for(demand, agenda, now, policy)
    if (
        plan is None
        or not plan.chunk_tokens
        or plan.chunk_tokens < min(plan.pending_tokens, _full_tokens(demand, policy))
    ):
        return None  # cut short for the others' sake: once they have run, more of it fits
    return plan if plan.predicted_s <= within_s else None


def _least_early_s(demand: Demand, policy: SchedulingPolicy) -> float:
    """What an iteration takes at least that would do for a first token ahead of its turn.

    The prefill due next is in it whole, or as a full chunk; known without asking how long the others can wait.
    """
    first = demand.in_order(demand.prefills)[0][1]
    draft = Draft(demand.instance, (*demand.decodes, *demand.prefills))
    if demand.decodes and policy.iteration.mixed:
        _add_decodes(draft, demand, demand.decodes, policy.iteration.max_batch - 1)
    return draft.seconds_with_chunk(min(first.pending_tokens, _full_tokens(demand, policy)), first.computed_tokens)


def _full_tokens(demand: Demand, policy: SchedulingPolicy) -> int:
    return policy.chunk.max_chunk_tokens - (policy.chunk.align_tokens or demand.instance.block_tokens)


def _best_effort_turn(agenda: Agenda, now: float, policy: SchedulingPolicy, allowed_s: float) -> IterationPlan | None:
    """Plan an iteration of another instance's best-effort requests while somebody waits, if it costs nobody an SLO."""
    demand = agenda.most_urgent_best_effort(now, alone=True)
    if demand is None or agenda.most_urgent_prefill(now) is not None:
        return None
    staged = demand.best_effort_deadline_s == BEFORE_BEST_EFFORT_S
    reserve_s = policy.iteration.staging_reserve_s if staged else policy.iteration.best_effort_reserve_s
    most_s = min(agenda.slack_s(now, policy.headroom) - reserve_s, allowed_s)
    within_s = min(most_s, policy.iteration.best_effort_iteration_s)
    plan = best_effort_plan(demand, now, policy, within_s, only_staged=staged)
    return plan if plan is not None and plan.predicted_s <= most_s else None


def _nearest(requests: list[RequestLoad], most: int) -> list[RequestLoad]:
    """Return the `most` requests whose deadlines are nearest, nearest first; in order of submission among equals."""
    if len(requests) <= 1:
        return requests[:most]
    return sorted(requests, key=_deadline)[:most]


def _not_staged(request: RequestLoad) -> bool:
    return not request.staged


def _deadline(request: RequestLoad) -> float:
    return request.deadline_s


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if abs(seconds) < 10 else f"{seconds:.0f} s"
