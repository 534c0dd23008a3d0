"""One device's mind: whose iteration is next, how big is its prefill chunk, what is loaded when?

`step(event, now) -> actions`. Events that speak of requests or instances which are gone are late news and change
nothing. Nothing is lost: a request leaves by finishing, by being cancelled (`DropRequest`), or back to the host
(`ReturnRequest`), each exactly once.
"""

from collections.abc import Callable
from typing import Any

from llmhostd.compute.estimator import CorrectionPolicy, ProfiledEstimator
from llmhostd.compute.headroom import Agenda
from llmhostd.compute.iteration_plan import SchedulingPolicy
from llmhostd.compute.workload import NodeLoad, RequestLoad
from llmhostd.domain import commands
from llmhostd.domain import node_events as events
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import InstanceId, RequestId
from llmhostd.domain.model import ModelState
from llmhostd.domain.node_events import NodeAction, NodeEvent
from llmhostd.domain.profile import Profile
from llmhostd.memory.kv_demand import KvDemandPolicy
from llmhostd.memory.kv_watermark import WatermarkPolicy
from llmhostd.node.device import Device
from llmhostd.node.instance import NodeInstance
from llmhostd.node.kv_pools import Eviction, KvPools
from llmhostd.node.lifecycle import Lifecycle
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
        self.where: dict[RequestId, InstanceId] = {}
        """Every request on this node, and its instance."""
        self.leaving: dict[RequestId, events.DropRequest | events.ReturnRequest] = {}
        """Requests of the running iteration that were cancelled or recalled, and how they leave when it ends."""
        pools = KvPools(
            spec.memory_bytes, self.instances, kv_demand or KvDemandPolicy(), watermark or WatermarkPolicy()
        )
        self.agenda = Agenda(self.load)
        self.device = Device(self.instances, self.agenda, pools, scheduling or SchedulingPolicy())
        self.lifecycle = Lifecycle(self.instances)
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

    def _load(self, command: commands.LoadInstance) -> list[NodeAction]:
        if command.instance_id not in self.instances:
            estimator = ProfiledEstimator(command.profile, self._correction) if command.profile else None
            one = NodeInstance.ordered(command, estimator)
            self.instances[one.id] = one
            self.load.instances[one.id] = one.load
            self.lifecycle.look_at(one)
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
            one.measuring = True
        return []

    def _submit(self, command: commands.SubmitRequest) -> list[NodeAction]:
        request = command.request
        if request.id in self.leaving:
            because = "its predecessor still computes"
            return [events.ReturnRequest(request_id=request.id, because=because)]
        if request.id in self.where:
            return []
        one = self.instances.get(command.instance_id)
        if one is None or one.phase is Phase.UNLOADING or one.unload_because is not None:
            gone = "is not loaded here" if one is None else "is being unloaded"
            return [events.ReturnRequest(request_id=request.id, because=f"{command.instance_id} {gone}")]
        one.rest_because = None
        one.load.requests[request.id] = RequestLoad(
            request, tokens_out=request.tokens_out, deadlines=self.device.policy.deadlines
        )
        self.where[request.id] = one.id
        self.agenda.touch(one.id)
        return []

    def _cancel(self, command: commands.CancelRequest) -> list[NodeAction]:
        return self._leave(events.DropRequest(request_id=command.request_id, because=command.because))

    def _recall(self, command: commands.RecallRequest) -> list[NodeAction]:
        if command.request_id in self.leaving:
            return []
        return self._leave(events.ReturnRequest(request_id=command.request_id, because=command.because))

    def _leave(self, way: events.DropRequest | events.ReturnRequest) -> list[NodeAction]:
        """Let a request go, now or when the iteration that computes it ends."""
        if way.request_id not in self.where:
            return []
        if self._in_flight(way.request_id):
            self.leaving[way.request_id] = way
            return []
        self._forget(way.request_id)
        return [way]

    def _loaded(self, event: events.InstanceLoaded) -> list[NodeAction]:
        one = self.instances.get(event.instance_id)
        if one is None or one.phase not in (Phase.LOADING, Phase.RESTING):
            return []
        one.move(Trigger.LOADED)
        one.held_bytes, one.kv_blocks = event.held_bytes, 0
        one.block_bytes, one.block_tokens = event.kv_bytes_per_block, event.block_tokens
        if one.estimator is not None:
            one.load.ready_at_s, one.load.first_run_s = self._now, one.estimator.profile.first_run_s
        self.lifecycle.completed(one.id)
        self.lifecycle.look_at(one)
        self.device.memory_came_free()
        self.agenda.touch(one.id)
        return []

    def _gone(self, event: events.InstanceGone) -> list[NodeAction]:
        one = self.instances.pop(event.instance_id, None)
        if one is None:
            return []
        del self.load.instances[one.id]
        self.lifecycle.completed(one.id)
        self.device.lost(one.id)
        self.agenda.touch(one.id)
        because = f"{one.id} is gone"
        back: list[NodeAction] = []
        for request_id in one.load.requests:
            del self.where[request_id]
            way = self.leaving.pop(request_id, None)
            back.append(way or events.ReturnRequest(request_id=request_id, because=because))
        return back

    def _prefix(self, event: events.PrefixMatched) -> list[NodeAction]:
        request = self._request(event.request_id)
        if request is not None:
            cached = min(event.cached_tokens, request.context_tokens - 1)
            request.computed_tokens = max(request.computed_tokens, cached)
            self.agenda.touch(self.where[event.request_id])
        return []

    def _iterated(self, event: events.IterationDone) -> list[NodeAction]:
        if not self.device.finished(event):
            return []
        self.load.busy_until_s = self._now
        self.agenda.touch(event.instance_id)
        for row in event.rows:
            self._advance(row)
        leaving = [way for way in self.leaving.values() if way.request_id in self.where]
        self.leaving.clear()
        for way in leaving:
            self._forget(way.request_id)
        return [*leaving, *self._relearned(event.instance_id)]

    def _relearned(self, instance_id: InstanceId) -> list[NodeAction]:
        """Tell the host when a correction has moved: it validates arrivals with the same profile."""
        one = self.instances.get(instance_id)
        if one is None or one.estimator is None or one.measuring:
            return []
        now = one.estimator.corrections
        least = self._correction.tell_change
        if all(abs(new / old - 1.0) < least for new, old in zip(now, one.told, strict=True)):
            return []
        one.told = now
        return [events.ReportProfile(instance_id=one.id, profile=one.estimator.profile)]

    def _resized(self, event: events.KvResized) -> list[NodeAction]:
        self.device.resized(event.instance_id, event.kv_blocks)
        return []

    def _measured(self, event: events.ProfileUpdated) -> list[NodeAction]:
        for one in self.instances.values():
            same = one.shape.key == event.profile.shape_key
            if one.id == event.instance_id or (same and one.estimator is None):
                one.know(ProfiledEstimator(event.profile, self._correction))
                one.measuring = one.id == event.instance_id and not event.complete
                if one.computes:
                    one.load.ready_at_s = min(one.load.ready_at_s, self._now)
                if one.phase is Phase.WARM:
                    one.load.first_run_s = event.profile.first_run_s
                self.agenda.touch(one.id)
        return []

    def _idle(self, _: events.DeviceIdle) -> list[NodeAction]:
        actions: list[NodeAction] = []
        while isinstance(decision := self.device.decide(self._now), Eviction):
            request_id = decision.request.shape.id
            self._forget(request_id)
            actions.append(events.ReturnRequest(request_id=request_id, because=decision.because))
        if isinstance(decision, events.RunIteration):
            self.load.busy_until_s = self._now + decision.predicted_s
        return actions if decision is None else [*actions, decision]

    def _advance(self, row: events.RowDone) -> None:
        request = self._request(row.request_id)
        if request is None:
            return
        request.computed_tokens += row.computed_tokens
        request.said(row.new_tokens, self._now)
        if row.finish is not None:
            one = self.instances[self.where[row.request_id]]
            self.device.pools.outputs_of(one).observe(request.tokens_out)
            self._forget(row.request_id)

    def _request(self, request_id: RequestId) -> RequestLoad | None:
        instance_id = self.where.get(request_id)
        return None if instance_id is None else self.instances[instance_id].load.requests[request_id]

    def _in_flight(self, request_id: RequestId) -> bool:
        running = self.device.running
        return running is not None and any(row.request_id == request_id for row in running.rows)

    def _forget(self, request_id: RequestId) -> None:
        one = self.instances[self.where.pop(request_id)]
        del one.load.requests[request_id]
        one.kv_ceiling = None
        self.device.shrinkable[one.id] = None
        self.lifecycle.look_at(one)
        self.agenda.touch(one.id)


ROUTES: dict[type[NodeEvent], Callable[[NodeMind, Any], list[NodeAction]]] = {
    commands.LoadInstance: NodeMind._load,
    commands.RestInstance: NodeMind._rest,
    commands.UnloadInstance: NodeMind._unload,
    commands.MeasureProfile: NodeMind._measure,
    commands.SubmitRequest: NodeMind._submit,
    commands.CancelRequest: NodeMind._cancel,
    commands.RecallRequest: NodeMind._recall,
    events.InstanceLoaded: NodeMind._loaded,
    events.InstanceGone: NodeMind._gone,
    events.PrefixMatched: NodeMind._prefix,
    events.IterationDone: NodeMind._iterated,
    events.KvResized: NodeMind._resized,
    events.ProfileUpdated: NodeMind._measured,
    events.DeviceIdle: NodeMind._idle,
}
"""Who answers which event."""
