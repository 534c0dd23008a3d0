"""If this request joined, would its first token, or anybody's next one, be late? (SLINFER §VI-C, fig. 15.)

Plays the node forward with the very functions that will schedule it, every iteration a little longer than predicted.
Best-effort requests are left out: they yield. Only harm that the newcomer adds counts: who is late already, or would be
as late without it, refuses nobody.
"""

from dataclasses import dataclass

from llmhostd.compute.demand import put_off
from llmhostd.compute.estimator import RoughEstimator
from llmhostd.compute.iteration_plan import SchedulingPolicy
from llmhostd.compute.shadow_play import Pace, Play, alone_s
from llmhostd.compute.workload import NodeLoad, RequestLoad
from llmhostd.domain.ids import InstanceId, RequestId

TOKENS_AHEAD = 3
"""Whether all work fits is asked of the times until so many tokens of the newcomer are due: who is due just after the
first of them pays for what is put before it."""
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
    only_added_harm: bool = True
    """Who is late already, or would be as late without the newcomer, refuses nobody. False: whoever is late does, as in
    SLINFER, where a node that recovers from anything refuses everybody meanwhile."""
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

    The instance may still be loading (`ready_at_s`). Best-effort newcomers are always accepted: they wait; and so is
    the only one on a node, if his model was never measured on its hardware: he is how that comes to be known. What is
    cheap to know is asked first: its own prefill (case 1), everybody's steady state (case 3), and whether the work that
    is due until its token fits into the time until then; then the play, which finds cases 1 and 2.
    """
    start_s, instance = max(now, node.busy_until_s), node.instances[instance_id]
    arrived_s, deadline_s = newcomer.shape.arrived_s, newcomer.deadline_s
    begins_s, own_s = max(start_s, instance.ready_at_s), alone_s(instance, newcomer)
    if not newcomer.latency_sensitive:
        return Verdict(True, begins_s + own_s - arrived_s, "best effort: runs in what is left")
    at_best_s = begins_s + own_s * policy.pessimism
    if isinstance(instance.estimator, RoughEstimator) and _alone(node, newcomer):
        return Verdict(True, at_best_s - arrived_s, "nobody knows yet how fast this is, and nobody else could be late")
    if at_best_s > deadline_s:
        return _too_late(at_best_s, newcomer)
    share = steady_share(node, instance_id, newcomer, policy)
    if share > 1.0:
        because = f"everybody's next tokens would take {share:.0%} of the time that they have"
        return Verdict(False, at_best_s - arrived_s, because)
    future = _Future(node, start_s, now, policy, scheduling or SchedulingPolicy())
    play = future.play((instance_id, newcomer))
    harmed = _harm(play, future, newcomer)
    came_s = play.newcomer_s
    if harmed:
        least_s = max(at_best_s, play.now if came_s is None else came_s)
        return Verdict(False, least_s - arrived_s, harmed)
    if came_s is None:  # the play ended before anything was late
        came_s = play.newcomer_at_best_s()
    if came_s > deadline_s:
        return _too_late(came_s, newcomer)
    ttft_s, promised_s = came_s - arrived_s, deadline_s - arrived_s
    return Verdict(True, ttft_s, f"first token in {ttft_s:.2f} s of {promised_s:.2f} s; decodes fill {share:.0%}")


def _alone(node: NodeLoad, newcomer: RequestLoad) -> bool:
    """Whether nobody else waits there: by a guess whoever asks first would be refused, and nothing ever known."""
    others = (one for each in node.instances.values() for one in each.requests.values() if one is not newcomer)
    return not any(one.latency_sensitive for one in others)


def steady_share(node: NodeLoad, instance_id: InstanceId, newcomer: RequestLoad, policy: ShadowPolicy) -> float:
    """Case 3: one decode iteration of every instance, as a share of TPOT_SLO, once all decode; > 1 is too much."""
    share, most = 0.0, policy.growth_tokens
    for key, one in node.instances.items():
        requests = [request for request in one.requests.values() if request.latency_sensitive]
        if key == instance_id:
            requests.append(newcomer)
        if not requests:
            continue
        context, tpot_s = 0, float("inf")
        for request in requests:
            shape, said = request.shape, request.tokens_out
            more = shape.max_tokens - said
            context += shape.prompt_tokens + said + (most if more >= most else max(more, 0))
            if shape.slo.tpot_s < tpot_s:
                tpot_s = shape.slo.tpot_s
        share += one.round_s(len(requests), context, one.adapters_of(requests)) * policy.pessimism / max(tpot_s, 1e-6)
    return share


def _too_late(at_s: float, newcomer: RequestLoad) -> Verdict:
    """Case 1."""
    arrived_s = newcomer.shape.arrived_s
    ttft_s, promised_s = at_s - arrived_s, newcomer.deadline_s - arrived_s
    because = f"its next token would come after {ttft_s:.2f} s or more, not {promised_s:.2f} s"
    return Verdict(False, ttft_s, because)


class _Future:
    """What the node would do; that without the newcomer is played only as far as somebody's lateness asks for it."""

    def __init__(
        self, node: NodeLoad, start_s: float, now: float, policy: ShadowPolicy, scheduling: SchedulingPolicy
    ) -> None:
        self._node, self._start_s, self._now, self._policy, self._scheduling = node, start_s, now, policy, scheduling
        self._without: Play | None = None
        self._late_anyway: dict[tuple[RequestId, int], float] = {}
        """By how much which tokens were late without the newcomer, as far as that was looked at."""
        self._looked_at = 0
        self._late_now: dict[RequestId, None] | None = None
        """Who is late already; None before anybody asked."""
        self._put_off = {key: one for each in node.instances.values() for key, one in put_off(each, start_s).items()}
        """Who cannot be in time any more, as the node will schedule them."""

    def play(self, joins: tuple[InstanceId, RequestLoad] | None) -> Play:
        """Begin to play, with or without the newcomer."""
        policy = self._policy
        pace = Pace(policy.pessimism, policy.loading_slowdown, policy.max_steps)
        return Play(self._node, joins, self._start_s, pace, self._scheduling, self._put_off)

    def excuses(self, request_id: RequestId, index: int, late_s: float, until_s: float) -> bool:
        """Whether that token would have been as late without the newcomer, or its request is late already."""
        if not self._policy.only_added_harm:
            return False
        if self._late_now is None:
            requests = (one for instance in self._node.instances.values() for one in instance.requests.values())
            self._late_now = {one.shape.id: None for one in requests if one.deadline_s < self._now}
            self._late_now |= dict.fromkeys(self._put_off)
        if request_id in self._late_now:
            return True
        if self._without is None:
            self._without = self.play(None)
        while self._without.now < until_s and self._without.step():
            pass
        late = self._without.late
        self._late_anyway.update(((who, what), by_s) for who, what, by_s in late[self._looked_at :])
        self._looked_at = len(late)
        return late_s <= self._late_anyway.get((request_id, index), 0.0) + TOLERANCE_S


def _harm(play: Play, future: _Future, newcomer: RequestLoad) -> str:
    """Play until the newcomer cannot be in time, or it has its token and nobody is in danger any more.

    Returns whom it harms (case 2); empty: nobody.
    """
    looked_at, own_id, deadline_s = 0, newcomer.shape.id, newcomer.deadline_s
    while True:
        if play.newcomer_s is None and play.round_ends and (overbooked := _overbooked(play, newcomer)):
            return overbooked
        if not play.step():
            return ""
        for request_id, index, late_s in play.late[looked_at:]:
            if request_id == own_id and index == newcomer.tokens_out:
                return ""
            if request_id == own_id or not future.excuses(request_id, index, late_s, play.now):
                return f"the next token of {request_id} would be {late_s * 1000:.0f} ms late"
        looked_at = len(play.late)
        if play.newcomer_s is None:
            if play.newcomer_at_best_s() > deadline_s:
                return ""
        elif play.nobody_in_danger():
            return ""


def _overbooked(play: Play, newcomer: RequestLoad) -> str:
    """Say when more is due than there is time, with the newcomer: at its next token, or one or two later ones."""
    for later in range(TOKENS_AHEAD):
        until_s = newcomer.deadline_s + later * newcomer.shape.slo.tpot_s
        over_s = play.overbooked_s(until_s)
        if over_s > 0.0:
            when = f"within {until_s - play.now:.2f} s" if later else "until its next token"
            return f"{over_s:.2f} s more work is due {when} than there is time"
    return ""
