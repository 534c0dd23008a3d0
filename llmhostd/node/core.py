"""One device's mind: whose iteration is next, how big is its prefill chunk, what is loaded when?

`step(event, now) -> actions`. Events that speak of requests or instances which are gone are late news and change
nothing. Nothing is lost: see `node.requests`.
"""

from collections.abc import Callable
from typing import Any

from llmhostd.compute.estimator import CorrectionPolicy, ProfiledEstimator
from llmhostd.compute.headroom import Agenda
from llmhostd.compute.iteration_plan import SchedulingPolicy
from llmhostd.compute.workload import NodeLoad
from llmhostd.domain import commands
from llmhostd.domain import node_events as events
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import InstanceId
from llmhostd.domain.model import ModelState
from llmhostd.domain.node_events import NodeAction, NodeEvent
from llmhostd.domain.profile import Profile
from llmhostd.domain.reports import NodeMemoryReported
from llmhostd.memory.kv_demand import KvDemandPolicy
from llmhostd.memory.kv_watermark import WatermarkPolicy
from llmhostd.node.device import Device
from llmhostd.node.instance import NodeInstance
from llmhostd.node.kv_pools import Eviction, KvPools
from llmhostd.node.lifecycle import Lifecycle
from llmhostd.node.memory import NodeMemory
from llmhostd.node.requests import Requests
from llmhostd.node.states import Phase, Trigger


class NodeMind:
    """Decides for one node. Same events at the same times: same actions."""

    def __init__(
        self,
        spec: NodeSpec,
        *,
        scheduling: SchedulingPolicy | None = None,
        kv_demand: KvDemandPolicy | None = None,
        watermark: WatermarkPolicy | None = None,
        correction: CorrectionPolicy | None = None,
    ) -> None:
        self.spec = spec
        self.load = NodeLoad()
        self.instances: dict[InstanceId, NodeInstance] = {}
        self.memory = NodeMemory(spec.memory_bytes, self.instances)
        pools = KvPools(self.memory, self.instances, kv_demand or KvDemandPolicy(), watermark or WatermarkPolicy())
        self.agenda = Agenda(self.load)
        self.device = Device(self.instances, self.agenda, pools, scheduling or SchedulingPolicy())
        self.lifecycle = Lifecycle(self.instances, self.memory)
        self.requests = Requests(self.instances, self.device, self.lifecycle)
        self._correction = correction or CorrectionPolicy()
        self._now = 0.0

    def step(self, event: NodeEvent, now: float) -> list[NodeAction]:
        """Hear one event, answer with what is to be done, in order."""
        self._now = now
        actions = ROUTES[type(event)](self, event)
        return [*actions, *self.lifecycle.advance(self.device)]

    def profile_of(self, instance_id: InstanceId) -> Profile | None:
        """Return what is known of an instance's speed, corrections included; None while it was never measured."""
        one = self.instances.get(instance_id)
        return None if one is None or one.estimator is None else one.estimator.profile

    def memory_report(self) -> NodeMemoryReported:
        """Say what the instances hold together."""
        return NodeMemoryReported(
            node_id=self.spec.id,
            budget_bytes=self.memory.budget_bytes,
            promised_bytes=self.memory.promised.owned_bytes,
            held_bytes=self.memory.held.owned_bytes,
            used_bytes=self.memory.used_bytes(),
            scaling_s=self.device.scaling_s,
        )

    def _load(self, command: commands.LoadInstance) -> list[NodeAction]:
        if command.instance_id not in self.instances:
            estimator = ProfiledEstimator(command.profile, self._correction) if command.profile else None
            one = NodeInstance.ordered(command, estimator, self.spec.block_tokens)
            self.instances[one.id] = one
            self.load.instances[one.id] = one.load
            self._changed(one)
        return []

    def _rest(self, command: commands.RestInstance) -> list[NodeAction]:
        one = self.instances.get(command.instance_id)
        if one is not None and one.phase is Phase.RESIDENT:
            one.rest_because = command.because
            one.target = ModelState.WARM
            self.lifecycle.look_at(one)
        return []

    def _unload(self, command: commands.UnloadInstance) -> list[NodeAction]:
        one = self.instances.get(command.instance_id)
        if one is not None and one.phase is not Phase.UNLOADING:
            one.unload_because = command.because
            self.lifecycle.look_at(one)
        return []

    def _measure(self, command: commands.MeasureProfile) -> list[NodeAction]:
        one = self.instances.get(command.instance_id)
        if one is not None:
            one.measuring, one.asked = True, command.asked
        return []

    def _submit(self, command: commands.SubmitRequest) -> list[NodeAction]:
        return self.requests.submit(command, self._now)

    def _stage(self, command: commands.StageRequest) -> list[NodeAction]:
        return self.requests.stage(command)

    def _cancel(self, command: commands.CancelRequest) -> list[NodeAction]:
        return self.requests.leave(events.DropRequest(request_id=command.request_id, because=command.because))

    def _recall(self, command: commands.RecallRequest) -> list[NodeAction]:
        if command.request_id in self.requests.leaving:
            return []
        return self.requests.leave(self.requests.back(command.request_id, command.because))

    def _loaded(self, event: events.InstanceLoaded) -> list[NodeAction]:
        one = self.instances.get(event.instance_id)
        if one is None or one.phase is not Phase.LOADING:
            return []
        one.loaded(event)
        if not event.filling:
            self.lifecycle.completed(one.id)
        self.device.memory_came_free()
        self._changed(one)
        return []

    def _weights_read(self, event: events.WeightsRead) -> list[NodeAction]:
        one = self.instances.get(event.instance_id)
        if one is None or one.phase is not Phase.FILLING:
            return []
        one.fuller(all_read=event.all_read)
        if event.all_read:
            self.lifecycle.completed(one.id)
        self._changed(one)
        return []

    def _near(self, event: events.WeightsNear) -> list[NodeAction]:
        one = self.instances.get(event.instance_id)
        if one is not None:
            one.arriving = False
            self.lifecycle.look_at(one)
        return []

    def _emptied(self, event: events.InstanceEmptied) -> list[NodeAction]:
        one = self.instances.get(event.instance_id)
        if one is not None and one.phase is Phase.RESTING:
            one.emptied_out()
            self.device.memory_came_free()
            self._changed(one)
        return []

    def _broken(self, event: events.InstanceBroken) -> list[NodeAction]:
        """Send it away; its requests need not wait for that, its memory is held until it is gone."""
        one = self.instances.get(event.instance_id)
        if one is None or not one.present:
            return []
        back = self.requests.all_leave(one, event.because)
        one.move(Trigger.BROKE)
        self.device.lost(one.id)
        self._changed(one)
        return [*back, events.BeginUnload(instance_id=one.id, because=event.because)]

    def _gone(self, event: events.InstanceGone) -> list[NodeAction]:
        one = self.instances.get(event.instance_id)
        if one is None:
            return []
        back = self.requests.all_leave(one, f"{one.id} is gone")
        del self.instances[one.id], self.load.instances[one.id]
        self.memory.forget(one)
        self.lifecycle.completed(one.id)
        self.device.lost(one.id)
        self.agenda.touch(one.id)
        return back

    def _weighed(self, event: events.InstanceWeighed) -> list[NodeAction]:
        """Believe the engine rather than the books. Of a resize under way its own end tells."""
        one = self.instances.get(event.instance_id)
        if one is not None and one.present:
            one.held_bytes, one.shared_blocks = event.held_bytes, event.shared_blocks
            if not one.resizing and one.kv_blocks != event.kv_blocks:
                self.memory.resized(one, event.kv_blocks)
            self.memory.refresh(one)
        return []

    def _budget(self, event: events.BudgetChanged) -> list[NodeAction]:
        self.memory.set_budget(event.memory_bytes)
        self.device.memory_came_free()
        return []

    def _prefix(self, event: events.PrefixMatched) -> list[NodeAction]:
        self.requests.matched(event)
        return []

    def _iterated(self, event: events.IterationDone) -> list[NodeAction]:
        plan = self.device.plan
        if not self.device.finished(event):
            return []
        self.load.busy_until_s = self._now
        for row in event.rows:
            self.requests.advance(row, self._now)
        if plan is not None and plan.gave_each_a_token(event.rows):
            self.agenda.all_decoded(event.instance_id, plan.decodes, self._now)
        else:
            self.agenda.touch(event.instance_id)
        failures = [(row.request_id, row.failed) for row in event.rows if row.failed]
        return [*self.requests.ended_with(failures), *self._relearned(event.instance_id)]

    def _begun(self, event: events.IterationBegun) -> list[NodeAction]:
        if not self.device.begun(event):
            return []
        self.load.busy_until_s = self._now
        self.agenda.touch(event.instance_id)
        return self.requests.left_meanwhile()

    def _failed(self, event: events.IterationFailed) -> list[NodeAction]:
        iteration = self.device.failed(event)
        if iteration is None:
            return []
        self.load.busy_until_s = self._now
        self.agenda.touch(event.instance_id)
        return self.requests.ended_with((row.request_id, event.because) for row in iteration.rows)

    def _relearned(self, instance_id: InstanceId) -> list[NodeAction]:
        """Tell the host when a correction has moved: it validates arrivals with the same profile."""
        one = self.instances.get(instance_id)
        if one is None or one.estimator is None or (one.measuring and one.measured):
            return []
        now = one.estimator.corrections
        least = self._correction.tell_change
        if all(abs(new / old - 1.0) < least for new, old in zip(now, one.told, strict=True)):
            return []
        one.told = now
        return [events.ReportProfile(instance_id=one.id, profile=one.estimator.profile)]

    def _resized(self, event: events.KvResized) -> list[NodeAction]:
        self.device.resized(event)
        return []

    def _measured(self, event: events.ProfileUpdated) -> list[NodeAction]:
        self._plan_with(event.profile)
        one = self.instances.get(event.instance_id)
        if one is not None:
            one.measuring = not event.complete
            one.asked = one.asked and one.measuring
        return []

    def _taught(self, command: commands.LearnProfile) -> list[NodeAction]:
        self._plan_with(command.profile)
        return []

    def _plan_with(self, profile: Profile) -> None:
        """Let all instances of a shape plan with what is known of it; what was measured they need not measure.

        An estimate says nothing to those that were measured meanwhile.
        """
        for one in self.instances.values():
            if one.shape.key == profile.shape_key and (profile.measured or not one.measured):
                if one.estimator is None and one.computes:
                    one.excuse(self._now)
                one.know(ProfiledEstimator(profile, self._correction))
                one.measuring = one.measuring and not profile.measured
                if one.phase in (Phase.FILLING, Phase.WARM):
                    one.load.first_run_s = profile.first_run_s
                self.device.shrinkable[one.id] = None
                self._changed(one)

    def _idle(self, _: events.DeviceIdle) -> list[NodeAction]:
        actions: list[NodeAction] = []
        decision: NodeAction | Eviction | None
        while isinstance(decision := self.device.decide(self._now), Eviction):
            actions.append(self.requests.back(decision.request.shape.id, decision.because))
            self.requests.forget(decision.request.shape.id)
        if isinstance(decision, events.RunIteration):
            self.load.busy_until_s = self._now + decision.predicted_s
        if decision is None and not actions and self.device.running is None:
            decision = self.lifecycle.hopeless()
        return actions if decision is None else [*actions, decision]

    def _changed(self, one: NodeInstance) -> None:
        """An instance came nearer to its first token, or further away."""
        self.memory.refresh(one)
        self.lifecycle.look_at(one)
        self.agenda.touch(one.id)


ROUTES: dict[type[NodeEvent], Callable[[NodeMind, Any], list[NodeAction]]] = {
    commands.LoadInstance: NodeMind._load,
    commands.RestInstance: NodeMind._rest,
    commands.UnloadInstance: NodeMind._unload,
    commands.MeasureProfile: NodeMind._measure,
    commands.LearnProfile: NodeMind._taught,
    commands.SubmitRequest: NodeMind._submit,
    commands.StageRequest: NodeMind._stage,
    commands.CancelRequest: NodeMind._cancel,
    commands.RecallRequest: NodeMind._recall,
    events.InstanceLoaded: NodeMind._loaded,
    events.WeightsRead: NodeMind._weights_read,
    events.WeightsNear: NodeMind._near,
    events.InstanceEmptied: NodeMind._emptied,
    events.InstanceBroken: NodeMind._broken,
    events.InstanceGone: NodeMind._gone,
    events.InstanceWeighed: NodeMind._weighed,
    events.BudgetChanged: NodeMind._budget,
    events.PrefixMatched: NodeMind._prefix,
    events.IterationDone: NodeMind._iterated,
    events.IterationBegun: NodeMind._begun,
    events.IterationFailed: NodeMind._failed,
    events.KvResized: NodeMind._resized,
    events.ProfileUpdated: NodeMind._measured,
    events.DeviceIdle: NodeMind._idle,
}
"""Who answers which event."""
