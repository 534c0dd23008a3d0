"""The device is free: what should it do now?

First pools, which are resized beside what computes; then whoever waits, by least headroom; then what makes later
requests fast (measuring, packing weights); then best-effort work. One thing at a time computes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from llmhostd.compute.headroom import Agenda
from llmhostd.compute.iteration_draft import IterationPlan
from llmhostd.compute.iteration_plan import SchedulingPolicy, describe, next_plan
from llmhostd.domain.ids import InstanceId
from llmhostd.domain.model import ModelState
from llmhostd.domain.node_events import (
    IterationBegun,
    IterationDone,
    IterationFailed,
    KvResized,
    ResizeKv,
    RowPlan,
    RunIteration,
    RunProfileSample,
)
from llmhostd.node.instance import NodeInstance
from llmhostd.node.kv_pools import Eviction, KvPools, Obstacle, Wait
from llmhostd.node.measuring import most_sample_tokens
from llmhostd.node.states import LOADS, Phase, Trigger

DeviceAction = RunIteration | ResizeKv | RunProfileSample


@dataclass(slots=True)
class Device:
    """What runs, and the choice of what runs next."""

    instances: Mapping[InstanceId, NodeInstance]
    agenda: Agenda
    pools: KvPools
    policy: SchedulingPolicy
    running: RunIteration | None = None
    plan: IterationPlan | None = None
    """What `running` was made from; None for a dummy iteration."""
    first_run: bool = False
    """Whether `running` packs weights: its duration teaches nothing about later ones."""
    best_effort_s: float = 0.0
    """Device time that best-effort work has saved up while somebody waited."""
    scaling_s: float = 0.0
    """Time that resizing KV pools has taken."""
    shrinkable: dict[InstanceId, None] = field(default_factory=dict)
    """Instances whose demand fell since their pools were last looked at."""

    def decide(self, now: float) -> DeviceAction | Eviction | None:
        """Choose; after an `Eviction`, and the removal of its request, ask again."""
        if self.running:
            return None
        choice = self.pools.memory.due() or self.pools.relieve() or self._shrink(now) or self._awaited_sample(now)
        while choice is None:
            plan = next_plan(self.agenda, now, self.policy, best_effort_s=self.best_effort_s)
            waited_for = plan is not None and self.agenda.most_urgent(now) is not None
            if not waited_for:
                choice = next(self._chores(), None)
            if choice is not None or plan is None:
                return choice
            one, rows = self.instances[plan.instance_id], plan.rows
            if one.blocked:
                continue  # meanwhile a sample of it has asked for a larger pool, which waits
            obstacle = self.pools.room_for(one, {row.request_id: row.tokens for row in rows})
            if obstacle is None:
                return self._run_plan(one, plan, rows, now, waited_for=waited_for)
            choice = _unless_wait(obstacle)
        return choice

    def busy_with(self, instance_id: InstanceId) -> bool:
        """Whether what runs now is on this instance, or its pool is being resized."""
        one = self.instances.get(instance_id)
        resizing = one is not None and one.resizing
        return resizing or (self.running is not None and self.running.instance_id == instance_id)

    def finished(self, event: IterationDone) -> bool:
        """Take note that an iteration ended; whether it is the one that ran."""
        if self.running is None or self.running.instance_id != event.instance_id:
            return False
        one = self.instances.get(event.instance_id)
        if one is not None:
            self._learn(one, event)
            # What runs without a plan only packs, and says nothing of iterations that have work, too.
            predicted_s = self.plan.predicted_s if self.plan is not None else event.duration_s
            if one.load.ran(settled=event.settled, predicted_s=predicted_s, actual_s=event.duration_s):
                self.agenda.touch(one.id)
            if self.plan is not None and one.load.room is not None:
                one.load.room = one.load.room.after(self.plan.adapters)
            if one.move(Trigger.RAN):
                self.pools.memory.refresh(one)
        self.running = self.plan = None
        return True

    def begun(self, event: IterationBegun) -> bool:
        """Take note that an iteration cannot go on before more weights are there; whether it is the one that ran."""
        if self.running is None or self.running.instance_id != event.instance_id:
            return False
        if self.instances[event.instance_id].phase is Phase.FILLING:
            self.instances[event.instance_id].paused()
        self.running = self.plan = None
        return True

    def failed(self, event: IterationFailed) -> RunIteration | None:
        """Take note that an iteration came to nothing; returns it, if it is the one that ran."""
        failed = self.running
        if failed is None or failed.instance_id != event.instance_id:
            return None
        self.running = self.plan = None
        return failed

    def resized(self, event: KvResized) -> None:
        """Take note of a pool's size."""
        self.scaling_s += event.took_s
        one, kv_blocks = self.instances.get(event.instance_id), event.kv_blocks
        if one is None:
            return
        before, asked = one.kv_blocks, one.kv_target if one.resizing else kv_blocks
        self.pools.memory.resized(one, kv_blocks)
        self.shrinkable[one.id] = None
        if before <= kv_blocks < asked:
            one.kv_ceiling = kv_blocks
        elif kv_blocks < before:
            self.memory_came_free()
        elif asked < kv_blocks:
            one.kv_stuck = True

    def lost(self, instance_id: InstanceId) -> None:
        """An instance is gone, and what ran on it; its memory came free."""
        if self.running is not None and self.running.instance_id == instance_id:
            self.running = self.plan = None
        self.shrinkable.pop(instance_id, None)
        self.memory_came_free()

    def memory_came_free(self) -> None:
        """Growth that failed may succeed now."""
        for each in self.instances.values():
            each.kv_ceiling = None

    def _run_plan(
        self, one: NodeInstance, plan: IterationPlan, rows: tuple[RowPlan, ...], now: float, *, waited_for: bool
    ) -> RunIteration:
        if waited_for and one.phase is not Phase.FILLING:
            self._save_up(plan)
        self.plan = plan
        return self._run(one, RunIteration(
            instance_id=one.id, rows=rows, predicted_s=plan.predicted_s,
            because=describe(plan, self.agenda, now),
        ))  # fmt: skip

    def _run(self, one: NodeInstance, iteration: RunIteration) -> RunIteration:
        self.first_run = one.phase is Phase.WARM
        self.running = iteration
        return iteration

    def _awaited_sample(self, now: float) -> DeviceAction | Eviction | None:
        """Measure a model that somebody waits for and nobody ever measured, as far as the others can bear it."""
        for one in self.instances.values():
            if one.estimator is not None or not one.computes or one.blocked:
                continue
            waiting = next((r.shape.id for r in one.load.requests.values() if r.latency_sensitive), None)
            if waiting is None:
                continue
            if self.agenda.slack_s(now, self.policy.headroom) < self.policy.iteration.measuring_reserve_s:
                return None
            return self._sample(one, f"{waiting} waits for its model to be measured; the others have slack")
        return None

    def _sample(self, one: NodeInstance, because: str) -> DeviceAction | Eviction | None:
        """Run a sample; None: its memory is not there yet."""
        obstacle = self.pools.room_to_measure(one, -(-most_sample_tokens(one.shape) // one.block_tokens))
        if obstacle is not None:
            return _unless_wait(obstacle)
        one.move(Trigger.RAN)  # the first sample packs the weights
        self.pools.memory.refresh(one)
        self.agenda.touch(one.id)
        return RunProfileSample(instance_id=one.id, because=because)

    def _save_up(self, plan: IterationPlan) -> None:
        """Best effort earns its share of what runs for others, and pays for what it takes of the device."""
        policy = self.policy.iteration
        earned_s = (plan.predicted_s - plan.best_effort_s) * policy.best_effort_share
        self.best_effort_s = min(self.best_effort_s + earned_s - plan.best_effort_s, policy.best_effort_saved_s)

    def _learn(self, one: NodeInstance, event: IterationDone) -> None:
        """Correct predictions; not by iterations that packed weights, filled adapters' slots or ran beside a load."""
        if self.plan is None or one.estimator is None or self.first_run or self.plan.filling_s or not event.settled:
            return
        if one.load.settling:
            return  # predicted before it was known to be settled
        if not any(each.phase in LOADS for each in self.instances.values()):
            one.estimator.observe(self.plan.kind, predicted_s=self.plan.predicted_s, actual_s=event.duration_s)

    def _pack(self, one: NodeInstance) -> DeviceAction | Eviction | None:
        """Pack the next part of its weights: a dummy iteration of one token, for which its pool needs a block."""
        obstacle = self.pools.room_to_pack(one)
        if obstacle is not None or not one.kv_blocks:
            return None if obstacle is None else _unless_wait(obstacle)
        load = one.load
        predicted_s = load.first_run_s + load.estimator.iteration_s(prefill=(), decode_batch=1, decode_context=0)
        because = "nobody waits; its weights are packed ahead of its first request"
        return self._run(one, RunIteration(instance_id=one.id, rows=(), predicted_s=predicted_s, because=because))

    def _shrink(self, now: float) -> ResizeKv | None:
        """Give back what a pool has far above its demand, if whoever waits on the node can bear it."""
        urgent = self.agenda.most_urgent(now) if self.shrinkable else None
        if urgent is not None and urgent.deadline_s - now < self.pools.watermark.shrink_reserve_s:
            return None
        while self.shrinkable:
            one_id = next(iter(self.shrinkable))
            del self.shrinkable[one_id]
            shrink = self.pools.shrink(self.instances[one_id]) if one_id in self.instances else None
            if shrink is not None:
                return shrink
        return None

    def _chores(self) -> Iterator[DeviceAction | Eviction]:
        """What to do while nobody waits, before best-effort work; not beside a load that somebody waits for."""
        if self._load_awaited():
            return
        # First those that nobody ever measured, as a coarse profile is enough to serve with, or that are asked for.
        for one in sorted(self.instances.values(), key=lambda each: each.measured and not each.asked):
            choice: DeviceAction | Eviction | None = None
            if one.computes and not one.blocked:
                if one.measuring:
                    choice = self._sample(one, "nobody waits; samples of its profile remain")
                if choice is None and not one.blocked and _to_pack(one):  # its sample may wait for a larger pool
                    choice = self._pack(one)
            if choice is not None:
                yield choice

    def _load_awaited(self) -> bool:
        """Whether somebody waits for a load that is under way, or next: it shares the cores with whatever computes."""
        if not any(one.phase in LOADS for one in self.instances.values()):
            return False
        coming = (one for one in self.instances.values() if one.phase in (Phase.QUEUED, *LOADS) and not one.arriving)
        return any(one.waited_for for one in coming)


def _to_pack(one: NodeInstance) -> bool:
    return one.target is ModelState.RESIDENT and (one.phase is Phase.WARM or one.load.settling)


def _unless_wait(obstacle: Obstacle) -> ResizeKv | Eviction | None:
    return None if isinstance(obstacle, Wait) else obstacle
