"""How soon could each instance answer, and how right was what was foretold?

Loads go one at a time per node, so each waits for those before it (ServerlessLLM §6.1). What workers report of their
loads and first iterations is learned from, and told, so that the next run of the daemon knows it too.
"""

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from statistics import median

from msgspec.structs import replace

from llmhostd.checkpoints.load_plan import LoadPlan, Pending, plan_load, queue_s
from llmhostd.checkpoints.tiers import StartPolicy, StartRates
from llmhostd.domain.actions import HostAction, StartEnded
from llmhostd.domain.commands import UnloadInstance
from llmhostd.domain.events import StartsRemembered, WeightsLocated
from llmhostd.domain.ids import HardwareKey, NodeId, ShapeKey
from llmhostd.domain.model import ModelShape, ModelState
from llmhostd.domain.reports import InstanceReported, IterationReported, LoadStages, WeightsFetched
from llmhostd.domain.start import StartSeen, StorageTier, TierBytes
from llmhostd.host.fleet import Fleet, ModelRecord, NodeRecord
from llmhostd.host.instance import Instance, Start
from llmhostd.host.profiles import ProfileKey

_GOOD_PART = 0.25
"""A load was beside others that computed for this part of it."""
LAST_STARTS = 10
"""The error of estimates is told over so many."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """What a load has before it and beside it on its node."""

    queue_s: float
    computes: bool
    """Others will compute while it loads."""
    compiled: Collection[ShapeKey]
    """Shapes that its worker has loaded before."""


class Starts:
    """Foretells, follows and learns."""

    def __init__(self, fleet: Fleet, policy: StartPolicy) -> None:
        self._fleet = fleet
        self._policy = policy
        self._rates: dict[HardwareKey, StartRates] = {}
        self._errors: dict[HardwareKey, deque[float]] = {}
        self._turn: dict[NodeId, Start] = {}
        """What loads now on each node."""
        self._compiled: dict[NodeId, dict[ShapeKey, None]] = {}
        """Which shapes each worker has loaded since it began."""

    def rates(self, hardware_key: HardwareKey) -> StartRates:
        """What nodes of one kind were seen to do."""
        if hardware_key not in self._rates:
            self._rates[hardware_key] = StartRates(self._policy)
        return self._rates[hardware_key]

    def plan(self, instance: Instance) -> LoadPlan:
        """Foretell a start with nobody before it and nobody beside it."""
        alone = Crowd(0.0, computes=False, compiled=self._compiled.get(instance.node_id, {}))
        return self._plan(instance.shape, instance.profile_key, self._lies(instance), alone)

    def crowd(self, node: NodeRecord, now: float) -> "Crowd":
        """What a load that was ordered on a node now would have before it and beside it."""
        return self._crowd(node, self._queue(node), now)

    def order(self, instance: Instance, now: float) -> None:
        """Foretell when an instance that is to be loaded, or loaded again, can run; it is followed from now on."""
        node, lies = self._fleet.node_of(instance), self._lies(instance)
        crowd = self._crowd(node, [one for one in self._queue(node) if one is not instance], now)
        plan = self._plan(instance.shape, instance.profile_key, lies, crowd)
        instance.start = Start(now, plan, lies, far=lies.remote_bytes > 0, foretold_s=plan.start_s)
        instance.load.ready_at_s, instance.load.first_run_s = now + plan.warm_s, plan.pack_s

    def asked_of(self, instance: Instance) -> None:
        """Foretell the first iteration of an instance that is loaded now: those who wait for it are known."""
        if instance.start is None:
            return
        waiting = tuple((one.pending_tokens, one.computed_tokens) for one in instance.load.requests.values())
        if waiting and self._fleet.profile_of(instance) is not None:
            estimator = instance.load.estimator
            instance.start.first_s = estimator.iteration_s(prefill=waiting, decode_batch=0, decode_context=0)
        instance.start.foretold_s = instance.start.plan.first_token_s(instance.start.first_s)

    def follow(self, node: NodeRecord, now: float) -> None:
        """Note whose turn it is on a node, and when each of those that wait will be loaded."""
        queue = self._queue(node)
        self._turn.pop(node.spec.id, None)
        if not node.up:
            self._compiled.pop(node.spec.id, None)
        if queue and queue[0].state is ModelState.LOADING and queue[0].start:
            first = self._turn[node.spec.id] = queue[0].start
            first.began_s = now if first.began_s is None else first.began_s
        for place, one in enumerate(queue):
            if self._fleet.profile_of(one) is not None:
                one.load.ready_at_s = now + queue_s(_pending(queue[: place + 1]), now)

    def fetched(self, event: WeightsFetched, now: float) -> list[HostAction]:
        """Follow weights on their way over a network: when they will be here, and whose turn it is to be built."""
        instance = self._fleet.instances.get(event.instance_id)
        if instance is None or instance.start is None or instance.state is not ModelState.LOADING:
            return []
        start, node = instance.start, self._fleet.node_of(instance)
        pace = event.bytes_per_s or self.rates(node.spec.hardware_key).bytes_per_s(StorageTier.REMOTE)
        left_s = (event.total_bytes - event.here_bytes) / pace + start.plan.build_s
        if event.near and start.far:
            start.near_s = left_s
        start.fetched, start.far = event, not event.near
        if self._fleet.profile_of(instance) is not None:
            instance.load.ready_at_s = now + left_s
        self.follow(node, now)
        if not instance.unload_asked or not instance.fetched_for_nobody:
            return []
        because = "asked to unload; nobody waits for it"
        return [UnloadInstance(node_id=node.spec.id, instance_id=instance.id, because=because)]

    def soonest_s(self, model: ModelRecord, now: float, crowds: Mapping[NodeId, "Crowd"]) -> float | None:
        """How long it takes from now until a model can answer at its usual pace; None: nobody could start it.

        `crowds`: of each node that is open.
        """
        mine = [self._here_s(one, now) for one in self._fleet.instances_of(model.spec.name)]
        if mine:
            return min(mine)
        shape, base = model.spec.shape, self._fleet.models.get(model.spec.served_by, model)
        lies = base.lies or _on_disk(shape)
        keys = ((crowd, self._fleet.nodes[node_id].spec.hardware_key) for node_id, crowd in crowds.items())
        plans = (self._plan(shape, (model.shape_key, key), lies, crowd) for crowd, key in keys)
        return min((plan.start_s for plan in plans), default=None)

    def _here_s(self, instance: Instance, now: float) -> float:
        match instance.state:
            case ModelState.RESIDENT:
                return 0.0
            case ModelState.WARM:
                return self.plan(instance).pack_s
        return max(instance.load.ready_at_s - now, 0.0) + instance.load.first_run_s

    def saved_s(self, size_bytes: int, hardware_key: HardwareKey) -> float:
        """How much sooner weights are read if they lie in host memory instead of on the disk."""
        rates = self.rates(hardware_key)
        near, far = TierBytes(memory_bytes=size_bytes), TierBytes(disk_bytes=size_bytes)
        return max(rates.read_s(far) - rates.read_s(near), 0.0)

    def loads_on(self, node: NodeRecord) -> bool:
        """Whether a node loads anything, or is about to."""
        return bool(self._queue(node))

    def loaded(self, instance: Instance, event: InstanceReported, now: float) -> list[HostAction]:
        """Hear that a load ended, before the instance counts as warm."""
        start = instance.start
        if event.state is not ModelState.WARM or instance.state is not ModelState.LOADING or not event.took_s:
            return []
        stages, lay = event.stages or LoadStages(), start.lies if start else TierBytes()
        if stages.read_bytes:
            far_bytes = stages.disk_bytes + stages.remote_bytes
            near_bytes = max(stages.read_bytes - far_bytes, 0)
            lay = TierBytes(memory_bytes=near_bytes, disk_bytes=stages.disk_bytes, remote_bytes=stages.remote_bytes)
        beside = start is not None and start.computed_s > _GOOD_PART * event.took_s
        shapes = self._compiled.setdefault(instance.node_id, {})
        seen = replace(
            _nothing_of(instance), came_from=lay, read_s=stages.read_s, load_s=event.took_s, beside=beside,
            fresh=instance.profile_key[0] not in shapes, compile_s=stages.compile_s,
        )  # fmt: skip
        shapes[instance.profile_key[0]] = None
        if start is None or instance.resting:
            return self._ended(instance, seen, f"built again in {event.took_s:.2f} s")
        start.ready_s = now
        seen = replace(seen, queue_s=max(now - start.ordered_s - event.took_s, 0.0))
        if instance.load.requests and self._fleet.profile_of(instance) is not None:
            start.seen = seen
            return []
        return self._started(instance, start, replace(seen, estimated_s=start.plan.warm_s))

    def computed(self, instance: Instance | None, event: IterationReported) -> None:
        """Hear of an iteration: of a warm instance's first one what it was to take for its own work."""
        loading = self._turn.get(event.node_id)
        if loading is not None:
            loading.computed_s += event.duration_s
        if instance is not None and instance.start is not None and instance.state is ModelState.WARM:
            instance.start.own_s = max(event.predicted_s - instance.load.first_run_s, 0.0)

    def packed(self, instance: Instance, event: InstanceReported, now: float) -> list[HostAction]:
        """Hear that an instance became resident."""
        start = instance.start
        if event.state is not ModelState.RESIDENT or start is None or not event.first_run_s:
            return []
        pack_s, begun_s = max(event.first_run_s - start.own_s, 0.0), max(start.own_s - event.first_run_s, 0.0)
        seen, start.seen = start.seen, None
        beside = instance.node_id in self._turn
        if seen is None:
            packed = replace(_nothing_of(instance), pack_s=pack_s, packed_beside=beside)
            return self._ended(instance, packed, f"packed in {pack_s:.2f} s")
        first_s = max(now - (start.ready_s or now), event.first_run_s)
        turn_s = start.ordered_s if start.began_s is None else start.began_s
        hops_s = max((start.ready_s or now) - turn_s - seen.load_s, 0.0) + first_s - event.first_run_s
        seen = replace(seen, pack_s=pack_s, begun_s=begun_s, packed_beside=beside, first_s=first_s, hops_s=hops_s)
        return self._started(instance, start, replace(seen, estimated_s=start.plan.first_token_s(start.first_s)))

    def located(self, event: WeightsLocated, now: float) -> list[HostAction]:  # noqa: ARG002 - as other answers
        """Know where a model's weights lie now."""
        model = self._fleet.models.get(event.model)
        if model is not None:
            model.lies = event.lies
        return []

    def remembered(self, event: StartsRemembered, now: float) -> list[HostAction]:  # noqa: ARG002 - as other answers
        """Learn what earlier runs of the daemon saw, the oldest first."""
        for seen in event.starts:
            self._learn(seen)
        return []

    def median_error(self, hardware_key: HardwareKey) -> float | None:
        """How far the estimates of the last ten starts were off, as a part of the truth; None: there was none yet."""
        errors = self._errors.get(hardware_key)
        return median(errors) if errors else None

    def _lies(self, instance: Instance) -> TierBytes:
        """Where its weights lie; on the disk, unless somebody looked."""
        model = self._fleet.models.get(instance.model)
        return model.lies if model and model.lies else _on_disk(instance.shape)

    def _plan(self, shape: ModelShape, key: ProfileKey, lies: TierBytes, crowd: "Crowd") -> LoadPlan:
        known, queue_s = self._fleet.profiles.get(key), 0.0 if lies.remote_bytes else crowd.queue_s
        rates, fresh = self.rates(key[1]), key[0] not in crowd.compiled
        return plan_load(shape, key[0], lies, rates, known, queue_s=queue_s, beside=crowd.computes, fresh=fresh)

    def _crowd(self, node: NodeRecord, before: list[Instance], now: float) -> "Crowd":
        """Those who run go on to; those who load before will have begun to."""
        computes = any(one.load.requests for one in self._fleet.instances_on(node) if one.loaded)
        computes = computes or any(one.load.requests for one in before)
        coming = [one.profile_key[0] for one in before]
        compiled = (*self._compiled.get(node.spec.id, {}), *coming)
        return Crowd(queue_s(_pending(before), now), computes, compiled)

    def _queue(self, node: NodeRecord) -> list[Instance]:
        """Who is loaded now or will be, in the order in which the node takes them (`node.lifecycle`).

        Nobody waits for one whose weights are still far, and it waits for nobody.
        """
        coming = [one for one in self._fleet.instances_on(node) if one.state in (ModelState.LOADING, ModelState.COLD)]
        return sorted((one for one in coming if one.start is None or not one.start.far), key=_turn)

    def _started(self, instance: Instance, start: Start, seen: StartSeen) -> list[HostAction]:
        foretold_s = seen.estimated_s or 0.0
        start.took_s, start.foretold_s = seen.start_s, foretold_s
        self._fleet.models[instance.model].last_start_s = seen.start_s
        first = f", first iteration {start.first_s:.2f}" if seen.first_s is not None else ""
        because = f"started in {seen.start_s:.2f} s; {foretold_s:.2f} s were foretold ({start.plan.because}{first})"
        return self._ended(instance, seen, because)

    def _ended(self, instance: Instance, seen: StartSeen, because: str) -> list[HostAction]:
        """Learn, and have it remembered. All that was read lies in host memory now."""
        model = self._fleet.models.get(instance.model)
        if model is not None and seen.came_from.total_bytes:
            model.lies = TierBytes(memory_bytes=instance.shape.weight_bytes)
        self._learn(seen)
        return [StartEnded(node_id=instance.node_id, instance_id=instance.id, seen=seen, because=because)]

    def _learn(self, seen: StartSeen) -> None:
        self.rates(seen.hardware_key).learn(seen)
        if seen.error is not None:
            self._errors.setdefault(seen.hardware_key, deque(maxlen=LAST_STARTS)).append(seen.error)


def _nothing_of(instance: Instance) -> StartSeen:
    """What was seen of a start of an instance before anything was."""
    shape_key, hardware_key = instance.profile_key
    return StartSeen(
        model=instance.model,
        node_id=instance.node_id,
        hardware_key=hardware_key,
        shape_key=shape_key,
        weights=instance.shape.weights,
        layers=instance.shape.architecture.layers,
        weight_bytes=instance.shape.weight_bytes,
    )


def _on_disk(shape: ModelShape) -> TierBytes:
    return TierBytes(disk_bytes=shape.weight_bytes)


def _pending(queue: list[Instance]) -> list[Pending]:
    """The next one's turn comes when it was heard that a load is over."""
    starts = [one.start for one in queue if one.start]
    loads_s = [one.plan.load_s + one.plan.hops_s if one.near_s is None else one.near_s for one in starts]
    return [Pending(load_s, one.began_s) for load_s, one in zip(loads_s, starts, strict=True)]


def _turn(one: Instance) -> tuple[bool, bool, bool, bool]:
    """Sort key: who loads now; then who has the memory; of these, who is waited for, and who only rests last."""
    waits = one.start is None or one.start.began_s is None
    return waits, one.state is ModelState.COLD, not one.waited_for, one.resting
