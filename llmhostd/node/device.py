"""The device is free: what should it do now?

First whoever waits, by least headroom; then what makes later requests fast (measuring, packing weights, giving memory
back); then best-effort work. One thing at a time: until it is over, the answer is nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from llmhostd.compute.headroom import Agenda
from llmhostd.compute.iteration_draft import IterationPlan
from llmhostd.compute.iteration_plan import SchedulingPolicy, describe, next_plan
from llmhostd.domain.ids import InstanceId
from llmhostd.domain.model import ModelState
from llmhostd.domain.node_events import IterationDone, ResizeKv, RowPlan, RunIteration, RunProfileSample
from llmhostd.node.instance import NodeInstance
from llmhostd.node.kv_pools import Eviction, KvPools
from llmhostd.node.states import Phase, Trigger

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
    resizing: ResizeKv | None = None
    best_effort_s: float = 0.0
    """Device time that best-effort work has saved up while somebody waited."""
    shrinkable: dict[InstanceId, None] = field(default_factory=dict)
    """Instances whose demand fell since their pools were last looked at."""

    def decide(self, now: float) -> DeviceAction | Eviction | None:
        """Choose; after an `Eviction`, and the removal of its request, ask again."""
        if self.running or self.resizing:
            return None
        awaited = self._awaited_sample(now)
        if awaited is not None:
            return awaited
        plan = next_plan(self.agenda, now, self.policy, best_effort_s=self.best_effort_s)
        waited_for = plan is not None and self.agenda.most_urgent(now) is not None
        if not waited_for:
            chore = next(self._chores(), None)
            if chore is not None:
                return chore
        if plan is None:
            return None
        one = self.instances[plan.instance_id]
        rows = plan.rows
        obstacle = self._room(one, rows)
        if obstacle is not None:
            return obstacle
        if waited_for:
            self._save_up(plan)
        self.plan = plan
        return self._run(one, RunIteration(
            instance_id=one.id, rows=rows, predicted_s=plan.predicted_s,
            because=describe(plan, self.agenda, now),
        ))  # fmt: skip

    def busy_with(self, instance_id: InstanceId) -> bool:
        """Whether what runs now is on this instance."""
        return any(each is not None and each.instance_id == instance_id for each in (self.running, self.resizing))

    def finished(self, event: IterationDone) -> bool:
        """Take note that an iteration ended; whether it is the one that ran."""
        if self.running is None or self.running.instance_id != event.instance_id:
            return False
        one = self.instances.get(event.instance_id)
        if one is not None:
            self._learn(one, event)
            one.move(Trigger.RAN)
        self.running = self.plan = None
        return True

    def resized(self, instance_id: InstanceId, kv_blocks: int) -> None:
        """Take note of a pool's size."""
        asked, one = self.resizing, self.instances.get(instance_id)
        if asked is not None and asked.instance_id == instance_id:
            self.resizing = None
        if one is None:
            return
        if asked is not None and one.kv_blocks <= kv_blocks < asked.kv_blocks:
            one.kv_ceiling = kv_blocks
        elif kv_blocks < one.kv_blocks:
            self.memory_came_free()
        elif asked is not None and asked.kv_blocks < kv_blocks:
            one.kv_stuck = True
        one.kv_blocks = kv_blocks

    def lost(self, instance_id: InstanceId) -> None:
        """An instance is gone, and what ran on it; its memory came free."""
        if self.running is not None and self.running.instance_id == instance_id:
            self.running = self.plan = None
        if self.resizing is not None and self.resizing.instance_id == instance_id:
            self.resizing = None
        self.pools.outputs.pop(instance_id, None)
        self.shrinkable.pop(instance_id, None)
        self.memory_came_free()

    def memory_came_free(self) -> None:
        """Growth that failed may succeed now."""
        for each in self.instances.values():
            each.kv_ceiling = None

    def _run(self, one: NodeInstance, iteration: RunIteration) -> RunIteration:
        self.first_run = one.phase is Phase.WARM
        self.running = iteration
        return iteration

    def _awaited_sample(self, now: float) -> RunProfileSample | None:
        """Measure a model that somebody waits for and nobody ever measured, as far as the others can bear it."""
        for one in self.instances.values():
            if one.estimator is not None or not one.computes:
                continue
            waiting = next((r.shape.id for r in one.load.requests.values() if r.latency_sensitive), None)
            if waiting is None:
                continue
            if self.agenda.slack_s(now, self.policy.headroom) < self.policy.iteration.measuring_reserve_s:
                return None
            return self._sample(one, f"{waiting} waits for its model to be measured; the others have slack")
        return None

    def _sample(self, one: NodeInstance, because: str) -> RunProfileSample:
        one.move(Trigger.RAN)  # the first sample packs the weights
        self.agenda.touch(one.id)
        return RunProfileSample(instance_id=one.id, because=because)

    def _room(self, one: NodeInstance, rows: Sequence[RowPlan]) -> ResizeKv | Eviction | None:
        obstacle = self.pools.room_for(one, {row.request_id: row.tokens for row in rows})
        if isinstance(obstacle, ResizeKv):
            self.resizing = obstacle
        return obstacle

    def _save_up(self, plan: IterationPlan) -> None:
        """Best effort earns its share of what runs for others, and pays for what it takes of the device."""
        policy = self.policy.iteration
        earned_s = (plan.predicted_s - plan.best_effort_s) * policy.best_effort_share
        self.best_effort_s = min(self.best_effort_s + earned_s - plan.best_effort_s, policy.best_effort_saved_s)

    def _learn(self, one: NodeInstance, event: IterationDone) -> None:
        """Correct predictions; not by iterations that packed weights or ran beside a load."""
        loading = any(each.phase in (Phase.LOADING, Phase.RESTING) for each in self.instances.values())
        if self.plan is not None and one.estimator is not None and not self.first_run and not loading:
            one.estimator.observe(self.plan.kind, predicted_s=self.plan.predicted_s, actual_s=event.duration_s)

    def _pack(self, one: NodeInstance) -> Iterator[DeviceAction]:
        """Make a warm instance resident: a dummy iteration, for which its pool needs a block."""
        if one.kv_blocks:
            because = "nobody waits; its weights are packed ahead of its first request"
            yield self._run(one, RunIteration(
                instance_id=one.id, rows=(), predicted_s=one.load.first_run_s, because=because,
            ))  # fmt: skip
            return
        growth = self.pools.growth(one, 1)
        if growth is not None:
            self.resizing = growth
            yield growth

    def _chores(self) -> Iterator[DeviceAction]:
        """What to do while nobody waits, before best-effort work."""
        # Those that nobody ever measured first: a coarse profile is enough to serve with.
        for one in sorted(self.instances.values(), key=lambda each: each.estimator is not None):
            if one.measuring and one.computes:
                yield self._sample(one, "nobody waits; samples of its profile remain")
            if one.target is ModelState.RESIDENT and one.phase is Phase.WARM:
                yield from self._pack(one)
        while self.shrinkable:
            one_id = next(iter(self.shrinkable))
            del self.shrinkable[one_id]
            shrink = self.pools.shrinkable(self.instances[one_id]) if one_id in self.instances else None
            if shrink is not None:
                self.resizing = shrink
                yield shrink
