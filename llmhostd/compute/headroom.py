"""Whose token next, and how long may the device be busy before anybody is late? (SLINFER §VI-A.)

Headroom falls by one second per second for everybody, so deadlines are compared instead: they change only when a
request gets a token, comes or goes. An `Agenda` keeps what each instance wants next in order of deadlines, and
recomputes only what was touched, which is what makes a choice among dozens of instances cost microseconds.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llmhostd.compute.demand import Demand, demand_of
from llmhostd.compute.workload import NEVER_S, InstanceLoad, NodeLoad, RequestLoad
from llmhostd.domain.ids import InstanceId


@dataclass(frozen=True, slots=True)
class HeadroomPolicy:
    """How close to a deadline the device may be kept busy."""

    reserve_s: float = 0.005
    """Kept in hand before every deadline: what an iteration may take longer than predicted."""


class Queue:
    """Demands in order of a deadline; without those that have none."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Demand]] = []

    def add(self, deadline_s: float, demand: Demand) -> None:
        """Put one in."""
        if deadline_s < NEVER_S:
            insort(self._entries, (deadline_s, demand.order, demand))

    def remove(self, deadline_s: float, demand: Demand) -> None:
        """Take it out again, by the deadline with which it was put in."""
        if deadline_s < NEVER_S:
            del self._entries[bisect_left(self._entries, (deadline_s, demand.order))]

    def first(self, now: float, *, but: InstanceId | None = None, alone: bool = False) -> Demand | None:
        """Return the first whose instance can run; `alone`: and has no latency-sensitive request."""
        for _, _, demand in self._entries:
            instance = demand.instance
            if instance.ready_at_s <= now and instance.id != but and not (alone and demand.dues):
                return demand
        return None

    def passed(self, now: float) -> Demand | None:
        """Return the first, if its deadline is over."""
        entries = self._entries
        return entries[0][2] if entries and entries[0][0] < now else None


class Agenda:
    """What every instance of a node wants next. Tell it with `touch` what changed; it recomputes no more than that."""

    __slots__ = (
        "_best_effort", "_demands", "_dues", "_in_time", "_loaded", "_node", "_prefills", "_puts_off", "_touched",
        "_urgent",
    )  # fmt: skip

    def __init__(self, node: NodeLoad, *, puts_off: bool = True) -> None:
        """Begin with what a node has. `puts_off`: first tokens that cannot be in time any more are due later."""
        self._node, self._puts_off = node, puts_off
        self._demands: dict[InstanceId, Demand] = {}
        self._urgent, self._prefills, self._best_effort = Queue(), Queue(), Queue()
        self._in_time = Queue()
        self._dues: list[tuple[float, int, float, float, InstanceLoad]] = []
        """(deadline, order, cost, share, whose), in order of deadlines."""
        self._loaded = 0
        self._touched: dict[InstanceId, None] = dict.fromkeys(node.instances)

    def touch(self, instance_id: InstanceId) -> None:
        """Forget what was known of an instance: its requests changed, or it came or went."""
        self._touched[instance_id] = None

    def decoded(self, demand: Demand, at_s: float) -> bool:
        """Every decode of an instance got its next token at `at_s`, and nobody there anything else.

        False, and nothing changes, where sums do not tell what it wants now (`Demand.advance`).
        """
        urgent_s, order, instance = demand.deadline_s, demand.order, demand.instance
        due_s, cost_s, share, _ = demand.dues[-1]
        if not demand.advance(at_s, decoded=True):
            return False
        del self._dues[bisect_left(self._dues, (due_s, order, cost_s, share))]
        due = demand.dues[-1]
        insort(self._dues, (due.deadline_s, order, due.cost_s, due.share, instance))
        if demand.deadline_s != urgent_s:
            self._urgent.remove(urgent_s, demand)
            self._urgent.add(demand.deadline_s, demand)
        return True

    def all_decoded(self, instance_id: InstanceId, decodes: Sequence[RequestLoad], at_s: float) -> None:
        """These requests of an instance know of a token that each got at `at_s`, and nobody there got anything else.

        What was known of the instance is forgotten, as with `touch`, unless they are its decodes and sums tell.
        """
        demand = self._demands.get(instance_id)
        known = demand is not None and instance_id not in self._touched and decodes is demand.batch.requests
        if demand is None or not known or not self.decoded(demand, at_s):
            self.touch(instance_id)

    def chunked(
        self, demand: Demand, at_s: float, chunked: Sequence[tuple[RequestLoad, RequestLoad]], *, decoded: bool
    ) -> bool:
        """More of an instance's prefills is computed, and every decode may have got its next token, at `at_s`.

        As with `decoded`.
        """
        self._drop(demand)
        advanced = demand.advance(at_s, decoded=decoded, chunked=chunked)
        self._put_in(demand)
        return advanced

    def demand(self, instance_id: InstanceId) -> Demand:
        """Return what an instance wanted when last looked at. Raises KeyError for one that is not there."""
        self._refresh()
        return self._demands[instance_id]

    def demands(self) -> Iterable[Demand]:
        """Return what every instance wanted when last looked at."""
        self._refresh()
        return self._demands.values()

    def most_urgent(self, now: float, *, but: InstanceId | None = None) -> Demand | None:
        """Return the runnable instance with the least latency-sensitive headroom; the longest loaded among equals."""
        self._look(now)
        return self._urgent.first(now, but=but)

    def most_urgent_best_effort(self, now: float, *, alone: bool = False) -> Demand | None:
        """Return the same among best-effort requests; `alone`: of instances without latency-sensitive ones."""
        self._look(now)
        return self._best_effort.first(now, alone=alone)

    def most_urgent_prefill(self, now: float) -> Demand | None:
        """Return the runnable instance whose first token is due next."""
        self._look(now)
        return self._prefills.first(now)

    def slack_s(
        self,
        now: float,
        policy: HeadroomPolicy,
        *,
        but: InstanceId | None = None,
        strict: bool = False,
        enough_s: float = -NEVER_S,
    ) -> float:
        """How long the device may be busy with anything else before a latency-sensitive request is late.

        By earliest deadline first: at each deadline, what is left after all work that is due until then. Decode
        batches come round every TPOT (taken as a steady share, which errs to the safe side). Requests that would be
        late even if served at once limit nobody, and instances that still load are left out, unless `strict`. Anything
        below `enough_s` is only known to be below it.
        """
        self._look(now)
        slack_s, fixed_s, share = NEVER_S, policy.reserve_s, 0.0
        left_out = self._demands[but].order if but in self._demands else 0
        for deadline_s, order, cost_s, own_share, instance in self._dues:
            if order == left_out or (instance.ready_at_s > now and not strict):
                continue
            headroom_s = deadline_s - now
            fixed_s += cost_s
            if strict or headroom_s >= cost_s:
                left_s = headroom_s - fixed_s - share * headroom_s
                if left_s < slack_s:
                    slack_s = left_s
                    if slack_s < enough_s:
                        return slack_s
            if own_share:
                share += own_share
                fixed_s -= own_share * headroom_s
        return slack_s

    def _look(self, now: float) -> None:
        """Recompute what was touched, and whose first tokens cannot be in time any more."""
        if self._touched:
            self._refresh()
        while self._puts_off and (demand := self._in_time.passed(now)) is not None:
            self._drop(demand)
            demand.put_off(now)
            self._put_in(demand)

    def _put_in(self, demand: Demand) -> None:
        self._urgent.add(demand.deadline_s, demand)
        self._prefills.add(demand.prefill_deadline_s, demand)
        self._in_time.add(demand.in_time_until_s, demand)
        self._best_effort.add(demand.best_effort_deadline_s, demand)
        for deadline_s, cost_s, share, _ in demand.dues:
            insort(self._dues, (deadline_s, demand.order, cost_s, share, demand.instance))

    def _drop(self, demand: Demand) -> None:
        self._urgent.remove(demand.deadline_s, demand)
        self._prefills.remove(demand.prefill_deadline_s, demand)
        self._in_time.remove(demand.in_time_until_s, demand)
        self._best_effort.remove(demand.best_effort_deadline_s, demand)
        for due in demand.dues:
            del self._dues[bisect_left(self._dues, (due.deadline_s, demand.order))]

    def _refresh(self) -> None:
        if not self._touched:
            return
        for instance_id in self._touched:
            instance = self._node.instances.get(instance_id)
            old = self._demands.get(instance_id)
            if old is not None:
                self._drop(old)
            if instance is None:
                self._demands.pop(instance_id, None)
            else:
                demand = self._demands[instance_id] = demand_of(instance)
                self._loaded += old is None
                demand.order = self._loaded if old is None else old.order
                self._put_in(demand)
        self._touched = {}
