"""Which instances exist, and how near to their first token are they?

Cold -> loading -> warm -> resident, and back again: after a while unused, or earlier when somebody else needs the
memory (least recently used first). Nothing is loaded and no request handed to a node before it really has the bytes.
"""

from dataclasses import dataclass

from msgspec.structs import replace

from llmhostd.compute.workload import RequestLoad
from llmhostd.domain.actions import HostAction
from llmhostd.domain.commands import LoadInstance, RecallRequest, RestInstance, SubmitRequest, UnloadInstance
from llmhostd.domain.hardware import NodeKind
from llmhostd.domain.model import ModelState
from llmhostd.domain.reports import IterationReported, RestCalledOff
from llmhostd.host.budget import Budget, Way
from llmhostd.host.fleet import Fleet, ModelRecord, NodeRecord
from llmhostd.host.instance import Instance
from llmhostd.host.keep_alive import KeepAlivePolicy
from llmhostd.host.request import LiveRequest
from llmhostd.host.starts import Starts
from llmhostd.memory.ledger import Purpose
from llmhostd.memory.reservation_station import Operation, OperationKind
from llmhostd.migration.live_migration import Phase


@dataclass(frozen=True, slots=True)
class ResidencyPolicy:
    """How long measurements and releases are expected to take."""

    unmeasured_profile_s: float = 5.0
    """Expected time to measure a shape that this hardware never ran."""
    release_s: float = 0.4
    """Expected time until those who give way have given back their memory."""


class Residency:
    """Loads, rests and unloads instances, and hands them their requests when they may have them."""

    def __init__(
        self, fleet: Fleet, budget: Budget, starts: Starts, policy: ResidencyPolicy, keep_alive: KeepAlivePolicy
    ) -> None:
        self._fleet = fleet
        self._starts = starts
        self._keep_alive = keep_alive
        self._budget = budget
        self._policy = policy

    def draft(self, model: ModelRecord, node: NodeRecord, now: float) -> Instance:
        """Make a new instance to ask what if about, with the time at which it could run its first iteration."""
        instance = self._fleet.draft(model, node, now)
        self.expect(instance, now)
        return instance

    def ready_at_s(self, instance: Instance, newcomer: RequestLoad, now: float) -> float:
        """Foretell when an instance could run a newcomer's first iteration."""
        waits_s = self._policy.release_s if self._budget.others_must_give_way(instance, newcomer) else 0.0
        return max(instance.load.ready_at_s, now) + waits_s

    def settle(self, instance: Instance, now: float, because: str) -> list[HostAction]:
        """Bring everything in line with what is assigned to an instance: promises, who gives way, loads, submissions.

        `because` is why it needs what it needs; whoever gives way repeats it.
        """
        self._budget.promise(instance)
        if (instance.idle or instance.fetched_for_nobody) and instance.unload_asked:
            return self.unload(instance, now, "asked to unload; it is idle now")
        node = self._fleet.node_of(instance)
        needy = None if instance.idle else instance  # the idle give way, whatever they turned out to need
        actions = self.give_way(node, now, because, but=needy)
        if instance.state is ModelState.COLD or not self._budget.granted(instance):
            node.station.issue(Operation(instance.id, self._kind(instance), because))
        actions += self.submit_waiting(instance) + self.proceed(node, now)
        if instance.state is ModelState.COLD and instance.id in node.station and instance.start:
            instance.start.wait(self._policy.release_s)
        return actions

    def proceed(self, node: NodeRecord, now: float) -> list[HostAction]:
        """Let those who wait for memory go on as far as the node really has it; who waits in vain is called off."""
        budget, actions = self._budget, list[HostAction]()
        if not node.station:
            return actions
        for each in node.station.in_vain(budget.growth_bytes, node.held.free_bytes, budget.coming_bytes(node)):
            self._call_off(self._fleet.instances[each.operation.instance_id])
        while operation := node.station.due(budget.growth_bytes, node.held.free_bytes):
            instance = self._fleet.instances[operation.instance_id]
            budget.grant(instance)
            if instance.state is ModelState.COLD:
                actions.append(self._load(instance, now))
            actions += self.submit_waiting(instance)
        return actions

    def give_way(self, node: NodeRecord, now: float, because: str, but: Instance | None = None) -> list[HostAction]:
        """Bring a node that promised too much back within its budget: spare KV first, then the idle and best effort.

        Best effort only for people, who wait on `but`, or (None) because the node has less now.
        """
        if node.promised.free_bytes >= 0:
            return []
        self._budget.settle_for_demand(node)
        actions: list[HostAction] = []
        for victim, way in self._budget.who_gives_way(node, but):
            actions += self._send_away(victim, way, now, because)
        for_people = but is None or but.waited_for
        while for_people and node.promised.free_bytes < 0 and (leaver := self._budget.first_to_leave(node)):
            actions += self._send_back(self._fleet.requests[leaver], f"best effort gives way; {because}")
        return actions

    def _kind(self, instance: Instance) -> OperationKind:
        if instance.state is ModelState.COLD:
            return OperationKind.LOAD_WEIGHTS
        promised_bytes = self._fleet.node_of(instance).promised.of(instance.id, Purpose.WEIGHTS)
        return OperationKind.WAKE if instance.granted_bytes[0] < promised_bytes else OperationKind.GROW_KV

    def _call_off(self, instance: Instance) -> None:
        """Let those who wait for its memory wait for another place; what runs there goes on in what it has."""
        for request_id in list(instance.load.requests):
            request = self._fleet.requests[request_id]
            if not request.submitted:
                self._fleet.withdraw(request)
                self._fleet.waiting.add(request)
        migrations = self._fleet.migrations
        for name in [each for each in instance.arriving if migrations[each].phase is Phase.PREPARING]:
            del instance.arriving[name]
        if instance.state is ModelState.COLD:
            self._fleet.remove(instance)
        else:
            self._budget.refresh(instance)

    def submit_waiting(self, instance: Instance) -> list[HostAction]:
        """Hand an instance the requests assigned to it, unless they must wait for its memory.

        Those of a model that nobody measured, too: their node loads and measures first what somebody waits for.
        """
        if instance.id in self._fleet.node_of(instance).station:
            return []
        waiting = [self._fleet.requests[request_id] for request_id in instance.load.requests]
        return [self._submit(request, instance) for request in waiting if not request.submitted]

    def rest(self, instance: Instance, now: float, because: str) -> list[HostAction]:
        """Send an idle resident instance back to warm."""
        instance.move(ModelState.LOADING)
        instance.resting = True
        instance.packs = False
        self.expect(instance, now)
        self._starts.follow(self._fleet.node_of(instance), now)
        self._budget.refresh(instance)
        return [RestInstance(node_id=instance.node_id, instance_id=instance.id, because=because)]

    def unload(self, instance: Instance, now: float, because: str) -> list[HostAction]:  # noqa: ARG002 - as `rest`
        """Remove an idle instance."""
        instance.move(ModelState.UNLOADING)
        self._budget.refresh(instance)
        return [UnloadInstance(node_id=instance.node_id, instance_id=instance.id, because=because)]

    def _send_back(self, request: LiveRequest, why: str) -> list[HostAction]:
        """Let a best-effort request leave an instance that goes on with others."""
        recall = request.submitted
        instance = self._fleet.leave(request)
        self._fleet.waiting.add(request)
        if instance is None:
            return []
        self._budget.refresh(instance)
        about = RecallRequest(node_id=instance.node_id, request_id=request.load.shape.id, because=why)
        return [about] if recall else []

    def _send_away(self, victim: Instance, way: Way, now: float, because: str) -> list[HostAction]:
        """Let an instance give way; its best-effort requests go on elsewhere."""
        used = (
            "best effort gives way"
            if victim.load.requests
            else f"least recently used ({now - victim.last_used_s:.0f} s)"
        )
        why = f"{used}; {because}"
        actions: list[HostAction] = [
            RecallRequest(node_id=victim.node_id, request_id=request.load.shape.id, because=why)
            for request in self._fleet.displace(victim)
        ]
        order = self.rest if way is Way.REST else self.unload
        return actions + order(victim, now, why)

    def look_at_idle(self, now: float) -> list[HostAction]:
        """Rest and unload what nobody used for long."""
        actions: list[HostAction] = []
        for instance in self._fleet.instances.values():
            if instance.idle and instance.unload_asked:
                actions += self.unload(instance, now, "asked to unload; it is idle now")
            elif instance.idle:
                actions += self._outstayed(instance, now)
        return actions

    def _outstayed(self, instance: Instance, now: float) -> list[HostAction]:
        """Rest or unload an idle instance if it was kept long enough. What is or will be measured is kept for that."""
        unused_s, profile = now - instance.last_used_s, self._fleet.profile_of(instance)
        if profile is None or not profile.measured or instance.measuring:
            return []
        again = self._starts.plan(instance)
        pack_s, again_s = again.pack_s, again.start_s
        share = self._keep_alive.spare_gpu if self._on_spare_gpu(instance) else 1.0
        if unused_s >= self._keep_alive.warm_s(again_s) * share:
            return self.unload(instance, now, f"unused for {unused_s:.0f} s; to have it again takes {again_s:.2f} s")
        if instance.state is ModelState.RESIDENT and unused_s >= self._keep_alive.resident_s(pack_s) * share:
            return self.rest(instance, now, f"unused for {unused_s:.0f} s; to pack its weights takes {pack_s:.2f} s")
        return []

    def _on_spare_gpu(self, instance: Instance) -> bool:
        """Whether its node is a GPU that serves nobody."""
        node = self._fleet.node_of(instance)
        if node.spec.kind is not NodeKind.GPU:
            return False
        return not any(one.load.requests or one.arriving for one in self._fleet.instances_on(node))

    def reported(self, instance: Instance, state: ModelState, now: float) -> bool:
        """Follow what a node says of an instance's state; says whether it was news.

        A node only says what it completed: when an instance loads, rests or goes, is decided here.
        """
        if state not in (ModelState.WARM, ModelState.RESIDENT) or not instance.move(state):
            return False
        profile = self._fleet.profile_of(instance)
        if state is ModelState.WARM:
            instance.resting = False
            instance.load.first_run_s = self._starts.plan(instance).pack_s if profile else 0.0
            instance.load.ready_at_s = now if profile else now + self._policy.unmeasured_profile_s
        elif state is ModelState.RESIDENT:
            instance.load.first_run_s = 0.0
            instance.load.ready_at_s = min(instance.load.ready_at_s, now)
        return True

    def ran(self, instance: Instance, event: IterationReported, now: float) -> bool:
        """Know by its work that an instance is resident. Says whether it was news.

        Work before a rest proves nothing, nor does work for those who left.
        """
        if instance.state is ModelState.RESIDENT or instance.resting:
            return False
        here = [row.request_id for row in event.rows if row.request_id in instance.load.requests]
        if not any(self._fleet.requests[request_id].submitted for request_id in here):
            return False
        return self._runs(instance, now)

    def rest_called_off(self, event: RestCalledOff, now: float) -> list[HostAction]:
        """Know that an instance does not rest after all: somebody came who was on his way, or who is staged there."""
        instance = self._fleet.instances.get(event.instance_id)
        if instance is None or not instance.resting:
            return []
        instance.resting = False
        self._runs(instance, now)
        return self.settle(instance, now, event.because)

    def sampled(self, instance: Instance, now: float) -> None:
        """Know that an instance is resident because samples of its profile run."""
        if instance.state is ModelState.WARM:
            self._runs(instance, now)

    def _runs(self, instance: Instance, now: float) -> bool:
        """Its weights are packed, which its node has not weighed yet."""
        instance.reported_bytes = max(instance.reported_bytes, self._budget.measured_bytes(instance))
        return self.reported(instance, ModelState.RESIDENT, now)

    def profiled(self, instance: Instance, now: float) -> None:
        """Plan with a first profile; what it took to measure is not held against the requests that waited for it."""
        instance.measuring = ""
        if not instance.loaded:
            self._starts.follow(self._fleet.node_of(instance), now)
            return
        instance.load.ready_at_s = now
        for request in instance.load.requests.values():
            if not request.tokens_out:
                request.shape = request.shape.excused_until(now)

    def expect(self, instance: Instance, now: float) -> None:
        """Foretell when an instance that must be loaded (again) can run, after those that load already."""
        self._starts.order(instance, now)
        if self._fleet.profile_of(instance) is None:
            instance.load.first_run_s = 0.0
            instance.load.ready_at_s += self._policy.unmeasured_profile_s

    def _load(self, instance: Instance, now: float) -> HostAction:
        instance.move(ModelState.LOADING)
        self._starts.follow(self._fleet.node_of(instance), now)
        self._starts.asked_of(instance)
        profile = self._fleet.profile_of(instance)
        wait_s = instance.load.ready_at_s - now
        known = "" if self._fleet.measured(instance) else "; never measured on this hardware, but others were"
        if profile is None:
            known = f", {self._policy.unmeasured_profile_s:.1f} s of it to measure what this hardware never ran"
        return LoadInstance(
            node_id=instance.node_id,
            instance_id=instance.id,
            model=instance.model,
            shape=instance.shape,
            target=ModelState.RESIDENT if instance.packs else ModelState.WARM,
            profile=replace(profile, first_run_s=instance.load.first_run_s) if profile else None,
            because=f"{instance.model} is not loaded on {instance.node_id}; ready in {wait_s:.1f} s{known}",
        )

    def _submit(self, request: LiveRequest, instance: Instance) -> HostAction:
        request.submitted = True
        request.told = (instance.node_id, instance.id)
        shape = request.load.moved_shape()
        return SubmitRequest(node_id=instance.node_id, instance_id=instance.id, request=shape, because=request.because)
