"""Whose token next, and how long may the device be busy before anybody is late? (SLINFER §VI-A.)

Headroom falls by one second per second for everybody, so deadlines are compared instead: they change only when a
request gets a token, comes or goes. An `Agenda` keeps what each instance wants next and recomputes only what was
touched, which is what makes a choice among dozens of instances cost microseconds.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from llmhostd.compute.workload import InstanceLoad, NodeLoad, RequestLoad
from llmhostd.domain.ids import InstanceId

NEVER_S = float("inf")


@dataclass(frozen=True, slots=True)
class HeadroomPolicy:
    """How close to a deadline the device may be kept busy."""

    reserve_s: float = 0.005
    """Kept in hand before every deadline: what an iteration may take longer than predicted."""


@dataclass(frozen=True, slots=True)
class Due:
    """Device time that must be spent before a deadline, and from then on at a rate."""

    deadline_s: float
    cost_s: float
    share: float
    """Of the device, after the deadline: a decode batch wants its iteration again every TPOT; a prefill does not."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What one instance wants of the device next."""

    instance: InstanceLoad
    deadline_s: float
    """Earliest next token among its latency-sensitive requests; NEVER_S when it has none."""
    decode_deadline_s: float
    """The same among those that decode."""
    best_effort_deadline_s: float
    """The same among its best-effort requests, whose deadlines only order them among themselves."""
    dues: tuple[Due, ...]
    """Its latency-sensitive work: the decode batch, and the whole rest of each prefill."""


def deadline_of(request: RequestLoad) -> float:
    """When the next token is due: now + headroom (SLINFER eq. 1)."""
    shape = request.shape
    slo = shape.slo
    return shape.arrived_s + slo.ttft_s + shape.grace_s + slo.tpot_s * request.tokens_out


def demand_of(instance: InstanceLoad) -> Demand:
    """Sum up one instance's requests."""
    decode_s, tpot_s, batch, context = NEVER_S, NEVER_S, 0, 0
    best_effort_s = NEVER_S
    dues: list[Due] = []
    first_run_s = instance.first_run_s
    for request in instance.requests.values():
        deadline_s = deadline_of(request)
        if not request.latency_sensitive:
            best_effort_s = min(best_effort_s, deadline_s)
        elif request.decoding:
            decode_s, tpot_s = min(decode_s, deadline_s), min(tpot_s, request.shape.slo.tpot_s)
            batch, context = batch + 1, context + request.context_tokens
        else:
            part = ((request.pending_tokens, request.computed_tokens),)
            cost_s = instance.estimator.iteration_s(prefill=part, decode_batch=0, decode_context=0)
            dues.append(Due(deadline_s, cost_s + first_run_s, 0.0))
            first_run_s = 0.0
    least_s = min((due.deadline_s for due in dues), default=NEVER_S)
    if batch:
        cost_s = instance.estimator.iteration_s(prefill=(), decode_batch=batch, decode_context=context // batch)
        dues.append(Due(decode_s, cost_s + first_run_s, cost_s / max(tpot_s, 1e-6)))
    return Demand(instance, min(least_s, decode_s), decode_s, best_effort_s, tuple(dues))


class Agenda:
    """What every instance of a node wants next. Tell it with `touch` what changed; it recomputes no more than that."""

    __slots__ = ("_demands", "_node", "_touched")

    def __init__(self, node: NodeLoad) -> None:
        self._node = node
        self._demands: dict[InstanceId, Demand] = {}
        self._touched: dict[InstanceId, None] = dict.fromkeys(node.instances)

    def touch(self, instance_id: InstanceId) -> None:
        """Forget what was known of an instance: its requests changed, or it came or went."""
        self._touched[instance_id] = None

    def most_urgent(self, now: float, *, but: InstanceId | None = None) -> Demand | None:
        """Return the runnable instance with the least latency-sensitive headroom; the longest loaded among equals."""
        best, least_s = None, NEVER_S
        for demand in self._current():
            if demand.deadline_s < least_s and demand.instance.ready_at_s <= now and demand.instance.id != but:
                best, least_s = demand, demand.deadline_s
        return best

    def most_urgent_best_effort(self, now: float, *, alone: bool = False) -> Demand | None:
        """Return the same among best-effort requests; `alone`: of instances without latency-sensitive ones."""
        best, least_s = None, NEVER_S
        for demand in self._current():
            if demand.best_effort_deadline_s < least_s and demand.instance.ready_at_s <= now:
                if alone and demand.dues:
                    continue
                best, least_s = demand, demand.best_effort_deadline_s
        return best

    def prefill_waits(self, now: float) -> bool:
        """Whether somebody on a runnable instance waits for a first token."""
        return any(
            due.share == 0.0 for demand in self._current() if demand.instance.ready_at_s <= now for due in demand.dues
        )

    def slack_s(
        self, now: float, policy: HeadroomPolicy, *, but: InstanceId | None = None, strict: bool = False
    ) -> float:
        """How long the device may be busy with anything else before a latency-sensitive request is late.

        By earliest deadline first: at each deadline, what is left after all work that is due until then. Decode
        batches come round every TPOT (taken as a steady share, which errs to the safe side). Requests that would be
        late even if served at once limit nobody, and instances that still load are left out, unless `strict`.
        """
        dues = [
            (due.deadline_s - now, due.cost_s, due.share)
            for demand in self._current()
            if demand.dues and demand.instance.id != but and (strict or demand.instance.ready_at_s <= now)
            for due in demand.dues
        ]
        dues.sort()
        slack_s, fixed_s, share = NEVER_S, policy.reserve_s, 0.0
        for headroom_s, cost_s, own_share in dues:
            fixed_s += cost_s
            left_s = headroom_s - fixed_s - share * headroom_s
            if strict or headroom_s >= cost_s:
                slack_s = min(slack_s, left_s)
            share += own_share
            fixed_s -= own_share * headroom_s
        return slack_s

    def _current(self) -> Iterator[Demand]:
        if self._touched:
            for instance_id in self._touched:
                instance = self._node.instances.get(instance_id)
                if instance is None:
                    self._demands.pop(instance_id, None)
                else:
                    self._demands[instance_id] = demand_of(instance)
            self._touched = {}
        return iter(self._demands.values())
