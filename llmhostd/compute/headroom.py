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
    """What one instance wants of the device next. Lists are in order of submission."""

    instance: InstanceLoad
    decodes: list[RequestLoad]
    """Latency-sensitive requests that decode."""
    prefills: list[RequestLoad]
    """Latency-sensitive requests whose context is still to be computed."""
    best_effort: list[RequestLoad]
    deadline_s: float
    """Earliest next token among its latency-sensitive requests; NEVER_S when it has none."""
    decode_deadline_s: float
    """The same among `decodes`."""
    prefill_deadline_s: float
    """The same among `prefills`."""
    best_effort_deadline_s: float
    """The same among `best_effort`, whose deadlines only order them among themselves."""
    dues: list[Due]
    """Its latency-sensitive work: the decode batch, and the whole rest of each prefill."""


def demand_of(instance: InstanceLoad) -> Demand:
    """Sum up one instance's requests."""
    decodes: list[RequestLoad] = []
    prefills: list[RequestLoad] = []
    best_effort: list[RequestLoad] = []
    decode_s = prefill_s = best_effort_s = tpot_s = NEVER_S
    context, first_run_s = 0, instance.first_run_s
    dues: list[Due] = []
    for request in instance.requests.values():
        deadline_s = request.deadline_s
        if not request.latency_sensitive:
            best_effort.append(request)
            best_effort_s = min(best_effort_s, deadline_s)
        elif request.decoding:
            decodes.append(request)
            context += request.context_tokens
            decode_s, tpot_s = min(decode_s, deadline_s), min(tpot_s, request.shape.slo.tpot_s)
        else:
            prefills.append(request)
            prefill_s = min(prefill_s, deadline_s)
            part = ((request.pending_tokens, request.computed_tokens),)
            cost_s = instance.estimator.iteration_s(prefill=part, decode_batch=0, decode_context=0)
            dues.append(Due(deadline_s, cost_s + first_run_s, 0.0))
            first_run_s = 0.0
    if decodes:
        batch = len(decodes)
        cost_s = instance.estimator.iteration_s(prefill=(), decode_batch=batch, decode_context=context // batch)
        dues.append(Due(decode_s, cost_s + first_run_s, cost_s / max(tpot_s, 1e-6)))
    least_s = min(prefill_s, decode_s)
    return Demand(
        instance, decodes, prefills, best_effort, least_s, decode_s, prefill_s, best_effort_s, dues
    )  # fmt: skip


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

    def most_urgent_prefill(self, now: float) -> Demand | None:
        """Return the runnable instance whose first token is due next."""
        best, least_s = None, NEVER_S
        for demand in self._current():
            if demand.prefill_deadline_s < least_s and demand.instance.ready_at_s <= now:
                best, least_s = demand, demand.prefill_deadline_s
        return best

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
