"""What would a node do from now on, if nobody else came and everything took a little longer than predicted?

Plays iterations by the very functions that the node plans them by. A play leaves the node as it is: requests are copied
when they change. While the decodes of an instance get their next tokens and its prefills progress, which is most of a
play, only sums are advanced (`Demand.advance`), and decodes are owed their tokens until somebody must look at them.
First tokens are put off as far as they cannot be in time when a play begins, by the predictions themselves: if somebody
is too late only because everything takes longer here, the node itself will not put him off.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from llmhostd.compute.estimator import Estimator
from llmhostd.compute.headroom import Agenda
from llmhostd.compute.iteration_draft import IterationPlan
from llmhostd.compute.iteration_plan import SchedulingPolicy, next_plan
from llmhostd.compute.workload import NEVER_S, InstanceLoad, NodeLoad, RequestLoad
from llmhostd.domain.ids import InstanceId, RequestId


@dataclass(frozen=True, slots=True)
class Pace:
    """How slowly a play goes."""

    pessimism: float
    """Every iteration takes this many times the prediction."""
    loading_slowdown: float
    """Iterations take this many times longer while an instance of the node loads."""
    max_steps: int
    """Iterations played at most."""


@dataclass(slots=True)
class _Owed:
    """Tokens that every decode of an instance got and that its requests do not know of."""

    copied: bool = False
    tokens: int = 0
    last_s: float = 0.0


class Play:
    """One possible future of the latency-sensitive part of a node, with a newcomer or as it is."""

    def __init__(
        self,
        node: NodeLoad,
        joins: tuple[InstanceId, RequestLoad] | None,
        start_s: float,
        pace: Pace,
        scheduling: SchedulingPolicy,
        put_off: Mapping[RequestId, RequestLoad],
    ) -> None:
        """Begin. `put_off`: who cannot be in time any more, and is due later therefore."""
        self.now = start_s
        self.late: list[tuple[RequestId, int, float]] = []
        """(request, output index, how late that token came), in order of time."""
        self.newcomer_s: float | None = None
        """When the newcomer got its first token of this play."""
        self._pace, self._scheduling = pace, scheduling
        self._joined, self._newcomer = (joins[0], joins[1].shape.id) if joins else (InstanceId(""), RequestId(""))
        self._newcomer_decodes = self._joined if joins and joins[1].decoding else None
        """Whose sums are not advanced, because the newcomer gets its token as one of its decodes."""
        self._node = _slower_copy(node, joins, pace, put_off)
        self._agenda = Agenda(self._node, puts_off=False)
        self._owed = {key: _Owed() for key in self._node.instances}
        self._loads_end_s = sorted(one.ready_at_s for one in self._node.instances.values() if one.ready_at_s > start_s)
        self._unserved: dict[RequestId, None] = {}
        self._alone = (-1, 0.0, 0.0)
        """What the rest of the newcomer takes: when so much of it was computed, and the first run took so long."""
        self._steps_left = pace.max_steps

    def step(self) -> bool:
        """Play one iteration, or wait for an instance to be loaded; False when nothing is left to do."""
        if not self._steps_left:
            return False
        self._steps_left -= 1
        loads_end_s = self._loads_end_s
        while loads_end_s and loads_end_s[0] <= self.now:
            del loads_end_s[0]
        plan = next_plan(self._agenda, self.now, self._scheduling)
        if plan is not None:
            self.now += plan.predicted_s * (self._pace.loading_slowdown if loads_end_s else 1.0)
            self._finish(plan)
            return True
        if not loads_end_s or loads_end_s[0] == NEVER_S:
            return False
        self.now = loads_end_s[0]
        return True

    @property
    def round_ends(self) -> bool:
        """Whether as many iterations were played as there are instances, or twice as many, and so on; or none yet."""
        return not (self._pace.max_steps - self._steps_left) % max(len(self._node.instances), 1)

    def overbooked_s(self, until_s: float) -> float:
        """By how much the work that is due until then exceeds the time, because of a newcomer that has no token yet.

        OmniServe's admission control asks the same of one instance's prefills and the prefill SLO (§3.3.3); this is of
        all instances, each piece of work by its own deadline. 0 or less: it does not, or it would without the newcomer
        too.
        """
        work_s, left_s = 0.0, until_s - self.now
        for demand in self._agenda.demands():
            work_s += demand.least_work_s(self.now, until_s)
        if work_s <= left_s:
            return 0.0
        joined, newcomer = (
            self._agenda.demand(self._joined),
            self._node.instances[self._joined].requests[self._newcomer],
        )
        own_s = joined.least_work_s(self.now, until_s) - joined.least_work_s(self.now, until_s, but=newcomer)
        return work_s - left_s if work_s - own_s <= left_s else 0.0

    def newcomer_at_best_s(self) -> float:
        """When the newcomer may have its token at the earliest: if from now on nobody else gets any device time."""
        instance = self._node.instances[self._joined]
        request = instance.requests[self._newcomer]
        done = request.computed_tokens, instance.first_run_s
        if done != self._alone[:2]:
            self._alone = (*done, alone_s(instance, request))
        return max(self.now, instance.ready_at_s) + self._alone[2]

    def nobody_in_danger(self) -> bool:
        """Whether all deadlines from here on are met, once the newcomer has its token.

        By earliest deadline first; or else, when everybody has got one more token since the newcomer got its own.
        """
        if not self._unserved:
            return True
        return self._agenda.slack_s(self.now, self._scheduling.headroom, strict=True, enough_s=0.0) >= 0.0

    def _finish(self, plan: IterationPlan) -> None:
        instance = self._node.instances[plan.instance_id]
        if instance.room is not None and plan.filling_s:
            instance.room = instance.room.after(plan.adapters)
        if self._advanced(plan, instance):
            return
        self._settle(instance)
        demand, before_s = self._agenda.demand(plan.instance_id), self.newcomer_s
        sums_tell = not plan.others and plan.decodes is demand.batch.requests and not instance.first_run_s
        instance.first_run_s = 0.0
        for decode in plan.decodes:
            self._computed(instance, decode.shape.id, 1, sample=True)
        for request, tokens in plan.others:
            self._computed(instance, request.shape.id, tokens, sample=tokens == request.pending_tokens)
        if before_s is None and self.newcomer_s is not None:
            self._unserved = {key: None for one in self._node.instances.values() for key in one.requests}
        if not (sums_tell and self._agenda.decoded(demand, self.now)):
            self._agenda.touch(plan.instance_id)

    def _computed(self, instance: InstanceLoad, request_id: RequestId, tokens: int, *, sample: bool) -> None:
        request = instance.requests[request_id]
        request.computed_tokens += tokens
        if sample:
            self._said(request)
            if request.tokens_out >= request.shape.max_tokens:
                del instance.requests[request_id]

    def _advanced(self, plan: IterationPlan, instance: InstanceLoad) -> bool:
        """Advance the sums of an instance where they tell all; False: look at each of its requests."""
        agenda = self._agenda
        demand = agenda.demand(plan.instance_id)
        decodes = demand.batch.requests
        decoded = bool(plan.decodes)
        if decoded and (plan.decodes is not decodes or self.now > demand.batch.deadline_s):
            return False  # not all of them are in it, or somebody is late
        if len(decodes) >= self._scheduling.iteration.max_batch - 1 or plan.instance_id == self._newcomer_decodes:
            return False
        if not plan.others:
            if not agenda.decoded(demand, self.now):
                return False
        elif any(tokens >= request.pending_tokens for request, tokens in plan.others):
            return False
        else:
            chunked = [(request, request.further(tokens)) for request, tokens in plan.others]
            if not agenda.chunked(demand, self.now, chunked, decoded=decoded):
                return False
            instance.requests.update((new.shape.id, new) for _, new in chunked)
        if decoded:
            self._owe(plan.instance_id, decodes)
        return True

    def _owe(self, instance_id: InstanceId, decodes: list[RequestLoad]) -> None:
        owed = self._owed[instance_id]
        owed.tokens += 1
        owed.last_s = self.now
        if self._unserved:
            for request in decodes:
                self._unserved.pop(request.shape.id, None)

    def _settle(self, instance: InstanceLoad) -> None:
        """Let the requests of an instance know what they got, in copies of their own."""
        owed = self._owed[instance.id]
        if not owed.copied:
            instance.requests = {key: one.further(0) for key, one in instance.requests.items()}
            owed.copied = True
        if owed.tokens:
            for request in instance.requests.values():
                if request.decoding:
                    request.computed_tokens += owed.tokens
                    request.said(owed.tokens, owed.last_s)
            owed.tokens = 0

    def _said(self, request: RequestLoad) -> None:
        """One request got its next token now."""
        request_id = request.shape.id
        late_s = self.now - request.deadline_s
        if late_s > 0.0:
            self.late.append((request_id, request.tokens_out, late_s))
        request.said(1, self.now)
        self._unserved.pop(request_id, None)
        if request_id == self._newcomer and self.newcomer_s is None:
            self.newcomer_s = self.now


def alone_s(instance: InstanceLoad, request: RequestLoad) -> float:
    """How long a request takes to its next token on an instance that has nothing else to do."""
    part = ((request.pending_tokens, request.computed_tokens),)
    return instance.first_run_s + instance.estimator.iteration_s(prefill=part, decode_batch=0, decode_context=0)


class _Slower:
    """An estimator that says a little more."""

    __slots__ = ("_factor", "_iteration_s")

    def __init__(self, estimator: Estimator, factor: float) -> None:
        self._iteration_s, self._factor = estimator.iteration_s, factor

    def iteration_s(self, *, prefill: tuple[tuple[int, int], ...], decode_batch: int, decode_context: int) -> float:
        predicted_s = self._iteration_s(prefill=prefill, decode_batch=decode_batch, decode_context=decode_context)
        return predicted_s * self._factor


def _slower_copy(
    node: NodeLoad,
    joins: tuple[InstanceId, RequestLoad] | None,
    pace: Pace,
    put_off: Mapping[RequestId, RequestLoad],
) -> NodeLoad:
    """Picture the latency-sensitive part of a node, with the newcomer on its instance. Requests are not copied yet."""
    picture = NodeLoad(node.busy_until_s)
    joined, newcomer = joins or (None, None)
    for key, one in node.instances.items():
        requests = {
            request_id: put_off.get(request_id, request)
            for request_id, request in one.requests.items()
            if request.latency_sensitive
        }
        if newcomer is not None and key == joined:
            requests[newcomer.shape.id] = newcomer
        if requests:
            slower = _Slower(one.estimator, pace.pessimism)
            first_run_s = one.first_run_s * pace.pessimism
            picture.instances[key] = InstanceLoad(
                key, slower, one.ready_at_s, first_run_s, requests, one.block_tokens, one.room
            )
        elif one.ready_at_s > node.busy_until_s:
            picture.instances[key] = InstanceLoad(key, one.estimator, one.ready_at_s, block_tokens=one.block_tokens)
    return picture
