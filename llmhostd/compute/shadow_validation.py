"""If this request joined, would its first token, or anybody's next one, be late? (SLINFER §VI-C, fig. 15.)

Plays a copy of the node forward with the very functions that will schedule it, every iteration a little longer than
predicted. Best-effort requests are left out: they yield. Only harm that the newcomer adds counts: who is late already,
or would be as late without it, refuses nobody.
"""

from dataclasses import dataclass, field, replace

from llmhostd.compute.estimator import Estimator
from llmhostd.compute.headroom import NEVER_S, Agenda
from llmhostd.compute.iteration_draft import IterationPlan
from llmhostd.compute.iteration_plan import SchedulingPolicy, next_plan
from llmhostd.compute.workload import InstanceLoad, NodeLoad, RequestLoad
from llmhostd.domain.ids import InstanceId, RequestId

TOLERANCE_S = 0.001
"""Somebody who is later by less than this with the newcomer than without was not harmed."""


@dataclass(frozen=True, slots=True)
class ShadowPolicy:
    """How carefully the future is played."""

    pessimism: float = 1.1
    """Every iteration takes this many times the prediction: fluctuations, and contexts that grow."""
    loading_slowdown: float = 2.0
    """Iterations take this many times longer while an instance of the node loads on the same cores."""
    growth_tokens: int = 64
    """In the steady state (case 3), every context has grown by up to this much."""
    max_steps: int = 200
    """Iterations played at most; what is not late by then passes."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """May it join?"""

    accepted: bool
    expected_ttft_s: float
    """From its arrival to its next token, pessimistically; if it is refused, at least that."""
    because: str


def validate(
    node: NodeLoad,
    instance_id: InstanceId,
    newcomer: RequestLoad,
    now: float,
    policy: ShadowPolicy,
    scheduling: SchedulingPolicy | None = None,
) -> Verdict:
    """Try a newcomer on one instance of a node, which stays as it is.

    The instance may still be loading (`ready_at_s`). Best-effort newcomers are always accepted: they wait.
    """
    scheduling = scheduling or SchedulingPolicy()
    start_s = max(now, node.busy_until_s)
    arrived_s, deadline_s = newcomer.shape.arrived_s, newcomer.deadline_s
    at_best_s = _alone_s(node.instances[instance_id], newcomer, start_s) - arrived_s
    if not newcomer.latency_sensitive:
        return Verdict(True, at_best_s, "best effort: runs in what is left")
    share = _steady_share(node, instance_id, newcomer, policy)
    if share > 1.0:
        return Verdict(False, at_best_s, f"everybody's next tokens would take {share:.0%} of the time that they have")
    play = _Play(_pessimistic_copy(node, instance_id, newcomer, policy), start_s, policy, scheduling)
    harmed = _play_out(play, _Baseline(node, start_s, now, policy, scheduling), newcomer)
    first_s = play.first_token_s.get(newcomer.shape.id)
    ttft_s = max(play.now if first_s is None else first_s, arrived_s + at_best_s) - arrived_s
    if harmed:
        return Verdict(False, ttft_s, harmed)
    promised_s = deadline_s - arrived_s
    if first_s is None or first_s > deadline_s:
        return Verdict(False, ttft_s, f"its next token would come after {ttft_s:.2f} s or more, not {promised_s:.2f} s")
    return Verdict(True, ttft_s, f"first token in {ttft_s:.2f} s of {promised_s:.2f} s; decodes fill {share:.0%}")


class _Slower:
    """An estimator that says a little more."""

    __slots__ = ("_factor", "_iteration_s")

    def __init__(self, estimator: Estimator, factor: float) -> None:
        self._iteration_s, self._factor = estimator.iteration_s, factor

    def iteration_s(self, *, prefill: tuple[tuple[int, int], ...], decode_batch: int, decode_context: int) -> float:
        predicted_s = self._iteration_s(prefill=prefill, decode_batch=decode_batch, decode_context=decode_context)
        return predicted_s * self._factor


@dataclass(slots=True)
class _Play:
    """One possible future of a node."""

    node: NodeLoad
    now: float
    policy: ShadowPolicy
    scheduling: SchedulingPolicy
    late: dict[tuple[RequestId, int], float] = field(default_factory=dict)
    """(request, output index) -> how late that token came; in order of time."""
    first_token_s: dict[RequestId, float] = field(default_factory=dict)
    """When each request got its first token of this play."""
    steps: int = 0
    agenda: Agenda = field(init=False)

    def __post_init__(self) -> None:
        self.agenda = Agenda(self.node)

    def step(self) -> bool:
        """Play one iteration, or wait for an instance to be loaded; False when nothing is left to do."""
        if self.steps >= self.policy.max_steps:
            return False
        self.steps += 1
        plan = next_plan(self.agenda, self.now, self.scheduling)
        loading_until_s = min(
            (one.ready_at_s for one in self.node.instances.values() if one.ready_at_s > self.now), default=NEVER_S
        )
        if plan is None:
            self.now = loading_until_s
            return loading_until_s < NEVER_S
        slowdown = self.policy.loading_slowdown if loading_until_s < NEVER_S else 1.0
        self.now += plan.predicted_s * slowdown
        self._finish(plan)
        return True

    def in_time(self) -> bool:
        """Whether earliest deadline first would meet every deadline from here on."""
        return self.agenda.slack_s(self.now, self.scheduling.headroom, strict=True) >= 0.0

    def tokens_out(self) -> dict[RequestId, int]:
        """How much each request that is still there has said."""
        return {
            key: request.tokens_out for one in self.node.instances.values() for key, request in one.requests.items()
        }

    def _finish(self, plan: IterationPlan) -> None:
        instance = self.node.instances[plan.instance_id]
        instance.first_run_s = 0.0
        for row in plan.rows:
            request = instance.requests[row.request_id]
            request.computed_tokens += row.tokens
            if not row.sample:
                continue
            late_s = self.now - request.deadline_s
            if late_s > 0.0:
                self.late[row.request_id, request.tokens_out] = late_s
            self.first_token_s.setdefault(row.request_id, self.now)
            request.said(1, self.now)
            if request.tokens_out >= request.shape.max_tokens:
                del instance.requests[row.request_id]
        self.agenda.touch(plan.instance_id)


class _Baseline:
    """The same future without the newcomer; played only when somebody is late with it, and only as far as needed."""

    def __init__(
        self, node: NodeLoad, start_s: float, now: float, policy: ShadowPolicy, scheduling: SchedulingPolicy
    ) -> None:
        self._node, self._start_s, self._now, self._policy, self._scheduling = node, start_s, now, policy, scheduling
        self._play: _Play | None = None

    def excuses(self, request_id: RequestId, index: int, late_s: float, until_s: float) -> bool:
        """Whether that token would have been as late without the newcomer, or its request is late already."""
        for instance in self._node.instances.values():
            if request_id in instance.requests and instance.requests[request_id].deadline_s < self._now:
                return True
        if self._play is None:
            copy = _pessimistic_copy(self._node, None, None, self._policy)
            self._play = _Play(copy, self._start_s, self._policy, self._scheduling)
        while self._play.now < until_s and self._play.step():
            pass
        return late_s <= self._play.late.get((request_id, index), 0.0) + TOLERANCE_S


def _play_out(play: _Play, baseline: _Baseline, newcomer: RequestLoad) -> str:
    """Play until the newcomer is late, or it has its token and nobody is in danger; say whom it harms ("": nobody).

    Nobody is in danger when earliest deadline first would meet all deadlines from here on, or when everybody has got
    one more token since the newcomer got its own.
    """
    looked_at, deadline_s, own_id = 0, newcomer.deadline_s, newcomer.shape.id
    then: dict[RequestId, int] | None = None
    while play.step():
        for (request_id, index), late_s in list(play.late.items())[looked_at:]:
            if request_id == own_id and index == newcomer.tokens_out:
                return ""
            if request_id == own_id or not baseline.excuses(request_id, index, late_s, play.now):
                return f"the next token of {request_id} would be {late_s * 1000:.0f} ms late"
        looked_at = len(play.late)
        if own_id not in play.first_token_s:
            if play.now > deadline_s:
                return ""
        elif then is None:
            then = play.tokens_out()
        if then is not None and (play.in_time() or all(now > then[key] for key, now in play.tokens_out().items())):
            return ""
    return ""


def _alone_s(instance: InstanceLoad, newcomer: RequestLoad, start_s: float) -> float:
    """When its next token would come at the earliest: as if nobody else were there."""
    part = ((newcomer.pending_tokens, newcomer.computed_tokens),)
    own_s = instance.estimator.iteration_s(prefill=part, decode_batch=0, decode_context=0)
    return max(start_s, instance.ready_at_s) + instance.first_run_s + own_s


def _pessimistic_copy(
    node: NodeLoad, instance_id: InstanceId | None, newcomer: RequestLoad | None, policy: ShadowPolicy
) -> NodeLoad:
    """Copy the latency-sensitive part of a node, with the newcomer on its instance."""
    copy = NodeLoad(node.busy_until_s)
    for key, one in node.instances.items():
        requests = {
            request_id: replace(request) for request_id, request in one.requests.items() if request.latency_sensitive
        }
        if key == instance_id and newcomer is not None:
            requests[newcomer.shape.id] = replace(newcomer)
        if requests:
            slower = _Slower(one.estimator, policy.pessimism)
            copy.instances[key] = InstanceLoad(
                key, slower, one.ready_at_s, one.first_run_s * policy.pessimism, requests
            )
        elif one.ready_at_s > node.busy_until_s:
            copy.instances[key] = InstanceLoad(key, one.estimator, one.ready_at_s)
    return copy


def _steady_share(node: NodeLoad, instance_id: InstanceId, newcomer: RequestLoad, policy: ShadowPolicy) -> float:
    """Case 3: one decode iteration of every instance, as a share of TPOT_SLO, once all decode; > 1 is too much."""
    share = 0.0
    for key, one in node.instances.items():
        requests = [request for request in one.requests.values() if request.latency_sensitive]
        if key == instance_id:
            requests.append(newcomer)
        if not requests:
            continue
        context = sum(
            request.context_tokens + min(policy.growth_tokens, max(request.shape.max_tokens - request.tokens_out, 0))
            for request in requests
        )
        tpot_s = min(request.shape.slo.tpot_s for request in requests)
        decode_s = one.estimator.iteration_s(
            prefill=(), decode_batch=len(requests), decode_context=context // len(requests)
        )
        share += decode_s * policy.pessimism / max(tpot_s, 1e-6)
    return share
