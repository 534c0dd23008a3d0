"""How does the mind look from outside, this second?"""

from collections.abc import Sequence

from llmhostd.checkpoints.tensors import parameter_count
from llmhostd.domain.events import PlacementKnown
from llmhostd.domain.model import ModelState
from llmhostd.domain.snapshot import InstanceSnapshot, ModelSnapshot, NodeSnapshot, RequestSnapshot
from llmhostd.domain.start import StorageTier
from llmhostd.domain.words import Word
from llmhostd.host.comeback import Remembered
from llmhostd.host.families import shape_on
from llmhostd.host.fleet import Fleet, ModelRecord, NodeRecord
from llmhostd.host.instance import Instance
from llmhostd.host.mirror import RECENT_S
from llmhostd.host.request import LiveRequest
from llmhostd.host.starts import Starts
from llmhostd.memory.ledger import Purpose

NEAREST_FIRST = (ModelState.RESIDENT, ModelState.WARM, ModelState.LOADING, ModelState.UNLOADING, ModelState.COLD)


class MindSnapshot(Word):
    """Everything that the host mind can say for the admin API."""

    nodes: tuple[NodeSnapshot, ...]
    models: tuple[ModelSnapshot, ...]
    instances: tuple[InstanceSnapshot, ...]
    requests: tuple[RequestSnapshot, ...]
    """Least headroom first."""
    awaited: tuple[PlacementKnown, ...] = ()
    """What is still to be loaded again, as it was when an earlier run ended; most recently used first."""


def snapshot(fleet: Fleet, starts: Starts, awaited: Sequence[Remembered], now: float) -> MindSnapshot:
    """Look at all of it; changes nothing."""
    crowds = {node.spec.id: starts.crowd(node, now) for node in fleet.nodes_open()}
    requests = [_request(fleet, each, now) for each in fleet.requests.values()]
    return MindSnapshot(
        nodes=tuple(_node(fleet, starts, each, now) for each in fleet.nodes.values()),
        models=tuple(_model(fleet, each, starts.soonest_s(each, now, crowds)) for each in fleet.models.values()),
        instances=tuple(_instance(each, now) for each in fleet.instances.values()),
        requests=tuple(sorted(requests, key=lambda each: each.headroom_s)),
        awaited=tuple(
            PlacementKnown(model=each.model, node_id=each.node_id, resident=each.resident, unused_s=now - each.used_s)
            for each in awaited
        ),
    )


def _node(fleet: Fleet, starts: Starts, node: NodeRecord, now: float) -> NodeSnapshot:
    recent = [each for each in node.recent if each[0] > now - RECENT_S]
    instances, memory = list(fleet.instances_on(node)), node.memory
    rates = starts.rates(node.spec.hardware_key)
    measuring = [f"{each.model} {each.measuring}" for each in instances if each.measuring]
    return NodeSnapshot(
        id=node.spec.id,
        kind=node.spec.kind,
        engine=node.spec.engine,
        hardware=node.spec.hardware_key,
        cores=node.spec.cores,
        up=node.up,
        draining=node.draining,
        memory_bytes=node.held.capacity_bytes,
        weights_bytes=node.held.total(Purpose.WEIGHTS),
        kv_bytes=node.held.total(Purpose.KV),
        kv_used_bytes=sum(each.kv_used_bytes for each in instances),
        free_bytes=node.held.free_bytes,
        busy=min(1.0, sum(duration_s for _, duration_s, _ in recent) / RECENT_S),
        iterations_per_s=len(recent) / RECENT_S,
        tokens_per_s=sum(tokens for _, _, tokens in recent) / RECENT_S,
        restarts=node.restarts,
        profiling=measuring[0] if measuring else "",
        caveats=node.caveats,
        budget_bytes=memory.budget_bytes if memory else node.held.capacity_bytes,
        promised_bytes=memory.promised_bytes if memory else 0,
        held_bytes=memory.held_bytes if memory else 0,
        used_bytes=memory.used_bytes if memory else 0,
        scaling_s=memory.scaling_s if memory else 0.0,
        kept_bytes=node.promised.lent_bytes,
        start_error=starts.median_error(node.spec.hardware_key),
        memory_bytes_per_s=rates.bytes_per_s(StorageTier.MEMORY),
        disk_bytes_per_s=rates.bytes_per_s(StorageTier.DISK),
        remote_bytes_per_s=rates.bytes_per_s(StorageTier.REMOTE),
    )


def _model(fleet: Fleet, model: ModelRecord, estimated_start_s: float | None) -> ModelSnapshot:
    shape = model.spec.shape
    states = [each.state for each in fleet.instances_of(model.spec.name)]
    state = min(states, key=NEAREST_FIRST.index, default=ModelState.COLD)
    adapter, base = model.spec.adapter, fleet.models.get(model.spec.served_by, model)
    loaded = [(shape_on(node.spec, model.spec), node.spec.hardware_key) for node in fleet.nodes.values()]
    keys = [(model.shape_key if one is shape else one.key, hardware) for one, hardware in loaded]
    return ModelSnapshot(
        name=model.spec.name,
        family=shape.architecture.family,
        parameters=adapter.parameters if adapter else parameter_count(shape.architecture),
        weights=shape.weights,
        compute=shape.compute,
        kv=shape.kv,
        weight_bytes=adapter.bytes if adapter else shape.weight_bytes,
        max_context_tokens=shape.architecture.max_context_tokens,
        slo=model.spec.slo,
        state=ModelState.QUARANTINED if base.quarantined else state,
        profiled=any(key in fleet.profiles and fleet.profiles[key].measured for key in keys),
        because=base.quarantined or base.broken,
        base=adapter.base if adapter else "",
        estimated_start_s=estimated_start_s,
        last_start_s=model.last_start_s,
        memory_bytes=model.lies.memory_bytes if model.lies else None,
        remote_bytes=_remote_bytes(fleet, base),
    )


def _instance(instance: Instance, now: float) -> InstanceSnapshot:
    fetched = instance.start.fetched if instance.start and instance.state is ModelState.LOADING else None
    return InstanceSnapshot(
        id=instance.id,
        model=instance.model,
        node_id=instance.node_id,
        state=instance.state,
        held_bytes=instance.reported_bytes,
        kv_bytes=instance.kv_bytes,
        kv_used_bytes=instance.kv_used_bytes,
        running=len(instance.load.requests),
        idle_s=max(0.0, now - instance.last_used_s),
        estimated_start_s=instance.start.foretold_s if instance.start else None,
        start_s=instance.start.took_s if instance.start else None,
        fetched_bytes=fetched.here_bytes if fetched else None,
        fetch_bytes=fetched.total_bytes if fetched else None,
        fetch_bytes_per_s=fetched.bytes_per_s if fetched else None,
    )


def _remote_bytes(fleet: Fleet, model: ModelRecord) -> int:
    """How much of a model's weights has still to come over a network."""
    starts = [one.start for one in fleet.instances_of(model.spec.name) if one.state is ModelState.LOADING and one.start]
    left = [one.fetched.total_bytes - one.fetched.here_bytes for one in starts if one.fetched]
    return min(left, default=model.lies.remote_bytes if model.lies else 0)


def _request(fleet: Fleet, request: LiveRequest, now: float) -> RequestSnapshot:
    load, shape = request.load, request.load.shape
    migration = fleet.migrations.get(shape.id)
    return RequestSnapshot(
        id=shape.id,
        model=shape.model,
        tier=shape.tier,
        instance_id=request.instance_id,
        phase=_phase(fleet, request),
        prompt_tokens=shape.prompt_tokens,
        tokens_out=load.tokens_out,
        max_tokens=shape.max_tokens,
        age_s=now - shape.arrived_s,
        headroom_s=load.headroom_s(now),
        moves=request.moves,
        moving_to=migration.destination if migration else None,
        follows_to=fleet.following.get(shape.id),
    )


def _phase(fleet: Fleet, request: LiveRequest) -> str:
    if request.instance_id is None:
        return "queued"
    state = fleet.instances[request.instance_id].state
    if not request.submitted or state not in (ModelState.WARM, ModelState.RESIDENT):
        return "loading"
    return "decode" if request.load.decoding else "prefill"
