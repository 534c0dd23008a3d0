"""One box's mind: what is to be done about what happened?

Routing is a table from event to the subsystem that answers it. After every event that may have freed something, those
who wait are looked at: people who lost their place, newcomers, best effort, warm-ups.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llmhostd.domain import events, reports
from llmhostd.domain.actions import HostAction
from llmhostd.domain.commands import CancelRequest
from llmhostd.domain.events import HostEvent
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import NodeId
from llmhostd.domain.model import ModelState
from llmhostd.host import mirror
from llmhostd.host.admission import Admission
from llmhostd.host.best_effort import BestEffort
from llmhostd.host.budget import Budget
from llmhostd.host.catalogue import Catalogue
from llmhostd.host.comeback import Comeback
from llmhostd.host.consolidator import Consolidator
from llmhostd.host.drain import Drain
from llmhostd.host.fleet import Fleet
from llmhostd.host.forecast import Forecast
from llmhostd.host.hope import Hopes
from llmhostd.host.host_memory import HostMemory
from llmhostd.host.measuring import Measuring
from llmhostd.host.migrating import Migrating
from llmhostd.host.moves import Moves
from llmhostd.host.offers import Offers
from llmhostd.host.placement import Placement
from llmhostd.host.policies import HostPolicies
from llmhostd.host.precedence import Precedence
from llmhostd.host.preempting import Preempting
from llmhostd.host.recovery import Recovery
from llmhostd.host.relief import Relief
from llmhostd.host.residency import Residency
from llmhostd.host.routing import Routing
from llmhostd.host.snapshots import MindSnapshot, snapshot
from llmhostd.host.starts import Starts


class HostMind:
    """Decides for one box. The same events at the same times: the same actions."""

    def __init__(self, nodes: Sequence[NodeSpec], policies: HostPolicies | None = None) -> None:
        """Begin with every node down: each is used from its NodeUp on."""
        p = policies or HostPolicies()
        self.fleet = Fleet(nodes, p.correction, p.prior)
        self.budget = Budget(self.fleet, p.budget, p.kv_demand, p.watermark)
        self.starts = Starts(self.fleet, p.starts)
        self.host_memory = HostMemory(self.fleet, self.starts, p.host_memory)
        self.residency = Residency(self.fleet, self.budget, self.starts, p.residency, p.keep_alive)
        offers = Offers(self.fleet, self.budget, self.residency, p.routing, p.packing, p.shadow, p.scheduling)
        self.consolidator = Consolidator(self.fleet, offers, self.residency, p.packing, p.preemption)
        self.routing = Routing(self.fleet, self.budget, offers, self.consolidator)
        self.placement = Placement(self.fleet, self.residency)
        self.migrating = Migrating(self.fleet, self.budget, offers, self.placement, self.residency, p.migration)
        self.moves = Moves(self.fleet, self.routing, self.placement, self.migrating)
        self.drain = Drain(self.fleet, self.routing, self.placement, self.residency, self.migrating)
        self.best_effort = BestEffort(self.fleet, self.routing, self.placement, p.best_effort)
        self.recovery = Recovery(self.fleet, self.routing, self.placement, p.recovery, p.refusal)
        self.relief = Relief(self.fleet, self.budget, self.placement, self.residency, self.migrating)
        hopes = Hopes(self.fleet, self.budget, self.residency, Forecast(self.fleet, self.budget, p.shadow), p.hope)
        precedence = Precedence(self.fleet, p.precedence)
        preempting = Preempting(self.fleet, self.placement, self.migrating, p.migration)
        self.admission = Admission(
            self.fleet, self.routing, hopes, self.placement, precedence, preempting, p.refusal, p.scheduling.deadlines
        )
        self.measuring = Measuring(self.fleet, self.budget, self.residency)
        self.catalogue = Catalogue(self.fleet, self.budget, self.residency, self.recovery, self.measuring, p.kv_demand)
        self.comeback = Comeback(self.fleet, self.budget, self.residency, p.keep_alive)
        self._answers = self._who_answers()

    def _who_answers(self) -> dict[type, Callable[[Any, float], list[HostAction]]]:
        return {
            events.ModelAdded: self.catalogue.added,
            events.ModelRemoved: self.catalogue.removed,
            events.ModelReleased: self.catalogue.released,
            events.QuarantineKnown: self.catalogue.quarantine_known,
            events.WarmUpAsked: self.catalogue.warm_up_asked,
            events.PlacementKnown: self.comeback.known,
            events.UnloadAsked: self.catalogue.unload_asked,
            events.MeasureAsked: self.catalogue.measure_asked,
            events.ProfileKnown: self._profile_known,
            events.StartsRemembered: self.starts.remembered,
            events.WeightsLocated: self.starts.located,
            events.RequestArrived: self._arrived,
            events.RequestCancelled: self._cancelled,
            events.DrainAsked: self.drain.asked,
            events.DrainEnded: self.drain.ended,
            events.MoveAsked: self.moves.asked,
            events.ClockTicked: self._ticked,
            reports.IterationReported: self._iterated,
            reports.InstanceReported: self._instance_reported,
            reports.ProfileProgressed: self._profile_progressed,
            reports.ProfileMeasured: self._profile_known,
            reports.RestCalledOff: self.residency.rest_called_off,
            reports.WeightsFetched: self.starts.fetched,
            reports.LoadFailed: self.recovery.load_failed,
            reports.RequestReturned: self._request_returned,
            reports.RequestFailed: self._request_failed,
            reports.NodeUp: self.recovery.node_up,
            reports.NodeDown: self.recovery.node_down,
            reports.NodeMemoryReported: self._memory_reported,
            reports.WeightsKept: self.host_memory.kept,
            reports.NodeMemoryChanged: self._memory_changed,
        }

    def step(self, event: HostEvent, now: float) -> list[HostAction]:
        """Hear one event; say what is to be done, in this order.

        Raises OperatorError for a profile that is not two full grids; nothing has changed then.
        """
        self.fleet.began_s = min(self.fleet.began_s, now)
        actions = self._answers[type(event)](event, now)
        if isinstance(event, reports.InstanceReported | reports.LoadFailed | reports.NodeDown):
            self.starts.follow(self.fleet.nodes[event.node_id], now)
        if isinstance(event, reports.NodeDown):
            self.host_memory.forget(self.fleet.nodes[event.node_id])
        actions += self.migrating.go_on(now)
        if _frees(event):
            actions += self._let_go_on(now, getattr(event, "node_id", None))
            actions += self.migrating.go_on(now)
        actions += self.moves.go_on(now)
        return [*self.host_memory.give_way(now), *actions]

    def snapshot(self, now: float) -> MindSnapshot:
        """Say what the box is doing this second."""
        return snapshot(self.fleet, self.starts, self.comeback.awaited, now)

    def _let_go_on(self, now: float, node_id: NodeId | None) -> list[HostAction]:
        """Look at everybody who waits in the host, after something happened on one node or (None) somewhere."""
        actions: list[HostAction] = []
        for node in self.fleet.nodes_up():
            if node.station:
                actions += self.residency.proceed(node, now)
        actions += self.recovery.place_stranded(now)
        actions += self.admission.look_again(now, node_id)
        actions += self.drain.go_on(now)
        actions += self.best_effort.dispatch(now)
        actions += self.comeback.go_on(now)
        actions += [*self.catalogue.warm_up(now), *self.measuring.go_on(now)]
        return actions + self.host_memory.look(now)

    def _arrived(self, event: events.RequestArrived, now: float) -> list[HostAction]:
        self.host_memory.asked(event.request.model, now)
        # It freed nothing: of those who wait, only best effort may be new.
        return self.admission.arrived(event.request, now) + self.best_effort.dispatch(now)

    def _cancelled(self, event: events.RequestCancelled, now: float) -> list[HostAction]:
        request = self.fleet.requests.get(event.request_id)
        if request is None:
            return []
        because = "nobody waits for it any more"
        actions: list[HostAction] = []
        if request.submitted and request.instance_id:
            node_id = self.fleet.instances[request.instance_id].node_id
            actions.append(CancelRequest(node_id=node_id, request_id=event.request_id, because=because))
        return actions + self.placement.end(request, now, because)

    def _request_returned(self, event: reports.RequestReturned, now: float) -> list[HostAction]:
        if event.staged:
            self.recovery.dropped(event, now)
            return self.migrating.dropped(event.node_id, event.request_id, now, event.because)
        if self.fleet.left(event.node_id, event.request_id):
            # It was told to let go of it: what waited for that may go on.
            return self._let_go_on(now, event.node_id)
        return self.recovery.returned(event, now)

    def _request_failed(self, event: reports.RequestFailed, now: float) -> list[HostAction]:
        self.fleet.left(event.node_id, event.request_id)
        request = self.fleet.requests.get(event.request_id)
        if request is None or request.told is None or request.told[0] != event.node_id:
            return self.migrating.dropped(event.node_id, event.request_id, now, event.error)
        return self.placement.end(request, now, event.error)

    def _iterated(self, event: reports.IterationReported, now: float) -> list[HostAction]:
        instance = self.fleet.instances.get(event.instance_id)
        actions: list[HostAction] = []
        self.starts.computed(instance, event)
        if instance is not None and self.residency.ran(instance, event, now):
            actions += self.residency.settle(instance, now, f"{instance.id} runs")
        finished = mirror.advance(self.fleet, event)
        for request in finished:
            actions += self.placement.end(request, now, f"{request.load.shape.id} finished")
        if instance is not None and (finished or self.budget.outgrown(instance)):
            for each in list(self.fleet.instances_of(instance.model)):
                actions += self.residency.settle(each, now, f"answers of {instance.model} are longer than expected")
        return actions

    def _instance_reported(self, event: reports.InstanceReported, now: float) -> list[HostAction]:
        instance = self.fleet.instances.get(event.instance_id)
        if instance is None:
            return []
        if event.state is ModelState.COLD:
            return self.recovery.gone(instance, now)
        mirror.weigh(instance, event)
        actions = [*self.starts.loaded(instance, event, now), *self.starts.packed(instance, event, now)]
        self.residency.reported(instance, event.state, now)
        return actions + self.residency.settle(instance, now, f"{instance.id} reported its size")

    def _memory_reported(self, event: reports.NodeMemoryReported, now: float) -> list[HostAction]:  # noqa: ARG002
        """Keep it to be looked at; what the host decides by are its own sums."""
        self.fleet.nodes[event.node_id].memory = event
        return []

    def _profile_progressed(self, event: reports.ProfileProgressed, now: float) -> list[HostAction]:
        instance = self.fleet.instances.get(event.instance_id)
        if instance is None or instance.taught:
            return []
        instance.measuring = f"{event.done}/{event.total}"
        self.measuring.progressed(event)
        self.residency.sampled(instance, now)
        return self.residency.settle(instance, now, f"{instance.model} is measured")

    def _profile_known(self, event: events.ProfileKnown | reports.ProfileMeasured, now: float) -> list[HostAction]:
        profile = event.profile
        by = event.node_id if isinstance(event, reports.ProfileMeasured) else None
        first = (profile.shape_key, profile.hardware_key) not in self.fleet.profiles
        news, concerned = self.fleet.learn(profile, by)
        actions = self.measuring.hand_on(event, news=news) if isinstance(event, reports.ProfileMeasured) else []
        for instance in concerned:
            if first:
                self.residency.profiled(instance, now)
            actions += self.residency.settle(instance, now, f"{instance.model} was measured")
        if news and profile.measured:
            actions += self.measuring.estimate_coming(profile.hardware_key, now)
        return actions + self.recovery.refuse_too_large(now)

    def _memory_changed(self, event: reports.NodeMemoryChanged, now: float) -> list[HostAction]:
        return self.relief.memory_changed(event, now) + self.recovery.refuse_too_large(now)

    def _ticked(self, event: events.ClockTicked, now: float) -> list[HostAction]:  # noqa: ARG002 - time is `now`
        self.catalogue.forget_removed()
        return self.consolidator.reclaim(now) + self.residency.look_at_idle(now)


def _frees(event: HostEvent) -> bool:
    """Whether somebody who waits may go on after this.

    Not after an arrival, nor an iteration that nobody finished in; and not right after a node gave a request back: what
    it lacked then it lacks now, and the request would go to and fro.
    """
    if isinstance(event, reports.IterationReported):
        return any(row.finish for row in event.rows)
    return not isinstance(
        event,
        events.RequestArrived | reports.RequestReturned | reports.NodeMemoryReported | reports.WeightsFetched,
    )
