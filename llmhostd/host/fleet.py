"""What is there: nodes, models, instances, live requests, and what is known of each?

The one mutable picture that all subsystems of the host mind look at. It only remembers; nothing here decides.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from llmhostd.compute.adapter_turns import room_of
from llmhostd.compute.estimator import CorrectionPolicy, Estimator, RoughEstimator
from llmhostd.compute.prior import PriorPolicy
from llmhostd.compute.workload import InstanceLoad, NodeLoad
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import HardwareKey, InstanceId, ModelName, NodeId, RequestId, ShapeKey
from llmhostd.domain.model import ModelShape, ModelSpec, ModelState
from llmhostd.domain.profile import Profile
from llmhostd.domain.reports import NodeMemoryReported
from llmhostd.domain.start import TierBytes
from llmhostd.host.families import may_serve, shape_on
from llmhostd.host.instance import Instance
from llmhostd.host.profiles import ProfileKey, Profiles
from llmhostd.host.request import LiveRequest
from llmhostd.host.waiting import Waiting
from llmhostd.memory.host_tier import AskRate
from llmhostd.memory.kv_demand import OutputLengths
from llmhostd.memory.ledger import Ledger
from llmhostd.memory.reservation_station import ReservationStation
from llmhostd.migration.live_migration import Migration

_COMING = (ModelState.COLD, ModelState.LOADING)


@dataclass(slots=True)
class NodeRecord:
    """One node: what it works on, and whose its bytes are."""

    spec: NodeSpec
    promised: Ledger
    """Optimistic: what instances will need once everything that was ordered is done. Decides (SLINFER §VII-C)."""
    held: Ledger
    """Pessimistic: what instances may take up at this moment. Executes."""
    load: NodeLoad = field(default_factory=NodeLoad)
    most_bytes: int = 0
    """The most that it ever had for instances."""
    up: bool = False
    down_since_s: float | None = None
    """When its worker died, while it is down; None: it is up, or never was."""
    restart_s: float | None = None
    """How long its worker takes to come back, as it lately did; None: it never had to."""
    draining: bool = False
    """An operator wants it empty: nothing new goes there."""
    restarts: int = 0
    caveats: tuple[str, ...] = ()
    """What its engine says is slow or off there."""
    memory: NodeMemoryReported | None = None
    """What it last said of its memory; None: nothing yet."""
    station: ReservationStation = field(default_factory=ReservationStation)
    """What was promised and is not yet granted."""
    kept_for: RequestId | None = None
    """Nothing new goes there until this request, which waits for too long already, has a place."""
    leaving: dict[RequestId, InstanceId] = field(default_factory=dict)
    """Requests that an instance was told to let go of, until it has: they may go anywhere but to this node."""
    dropping: dict[RequestId, InstanceId] = field(default_factory=dict)
    """The same of what was only staged there."""
    bringing_in: ModelName | None = None
    """The model whose weights its worker brings into host memory, to be kept there (`promised.lent`)."""
    recent: deque[tuple[float, float, int]] = field(default_factory=deque)
    """Iterations of the last second: end, duration, output tokens."""


@dataclass(slots=True)
class ModelRecord:
    """One model that may be asked for."""

    spec: ModelSpec
    shape_key: ShapeKey
    outputs: OutputLengths
    """How long its answers are, on average."""
    lies: TierBytes | None = None
    """Where its weights lie, as far as anybody looked."""
    asked: AskRate | None = None
    """How often it is asked for; None: it never was."""
    callers: AskRate | None = None
    """How often lately, for who comes first while memory is short."""
    last_start_s: float | None = None
    """What its last start took."""
    removed: bool = False
    crashes_in_a_row: int = 0
    quarantined: str = ""
    """Why, until an operator releases it."""
    broken: str = ""
    """Why its last load failed."""
    broken_until_s: float = 0.0
    """Until then nobody tries again."""

    def unloadable(self, now: float) -> str:
        """Why it may not be loaded now; empty when it may."""
        return self.quarantined or (self.broken if now < self.broken_until_s else "")


class Fleet:
    """All of it, by id; every table in the order in which things came."""

    def __init__(self, nodes: Sequence[NodeSpec], correction: CorrectionPolicy, prior: PriorPolicy) -> None:
        self.nodes: dict[NodeId, NodeRecord] = {
            spec.id: NodeRecord(
                spec, Ledger(spec.memory_bytes), Ledger(spec.memory_bytes), most_bytes=spec.memory_bytes
            )
            for spec in nodes
        }
        self.models: dict[ModelName, ModelRecord] = {}
        self.instances: dict[InstanceId, Instance] = {}
        self.requests: dict[RequestId, LiveRequest] = {}
        self.migrations: dict[RequestId, Migration] = {}
        """Those under way, in the order in which they began."""
        self.following: dict[RequestId, NodeId] = {}
        """Streams that go to these nodes as soon as they may begin to, in the order in which an operator asked."""
        self.waiting = Waiting()
        self.profiles = Profiles(correction, prior)
        self.began_s = inf
        """When anything was first heard: workers are started then."""
        self._loads_so_far = 0

    def node_of(self, instance: Instance) -> NodeRecord:
        """Where an instance is."""
        return self.nodes[instance.node_id]

    def instances_of(self, model: ModelName) -> Iterator[Instance]:
        """All of a model's instances, whatever their state; an adapter's are those of its base."""
        known = self.models.get(model)
        base = known.spec.served_by if known else model
        return (each for each in self.instances.values() if each.model == base)

    def current(self, instance: Instance) -> bool:
        """Whether an instance is what would be loaded for its model now."""
        model = self.models.get(instance.model)
        return model is not None and instance.shape == shape_on(self.node_of(instance).spec, model.spec)

    def close_outdated(self, model: ModelSpec) -> None:
        """Let instances that cannot serve a model take nobody new of its family, and so make room for one that can."""
        for each in self.instances_of(model.name):
            each.closed = each.closed or not (self.current(each) or may_serve(each.shape, model))

    def family(self, base: ModelName) -> list[ModelName]:
        """List the models that a base's instances serve: itself, and its adapters."""
        return [base, *(name for name, one in self.models.items() if one.spec.adapter and one.spec.served_by == base)]

    def unloadable(self, model: ModelRecord, now: float) -> str:
        """Why a model, or its base, may not be loaded now; empty when it may."""
        base = self.models.get(model.spec.served_by)
        return base.unloadable(now) if base else f"{model.spec.served_by}, its base, is gone"

    def instances_on(self, node: NodeRecord) -> Iterator[Instance]:
        """All of a node's instances, in order of loading."""
        return (self.instances[instance_id] for instance_id in node.load.instances)

    def nodes_up(self) -> list[NodeRecord]:
        """Nodes whose worker answers."""
        return [node for node in self.nodes.values() if node.up]

    def nodes_open(self) -> list[NodeRecord]:
        """Nodes that may be given something new."""
        return [node for node in self.nodes.values() if node.up and not node.draining]

    def nodes_free(self) -> list[NodeRecord]:
        """Nodes that may be given something new by whoever comes now; the others are kept for those who came before."""
        return [node for node in self.nodes_open() if node.kept_for is None]

    def profile_of(self, instance: Instance) -> Profile | None:
        """What is known of its shape's speed on its hardware: measured, or estimated until it is."""
        return self.profiles.get(instance.profile_key, instance.node_id)

    def measured(self, instance: Instance) -> bool:
        """Whether its shape was ever measured on its hardware; otherwise it will be, as soon as it is loaded."""
        profile = self.profile_of(instance)
        return profile is not None and profile.measured

    def learn(self, profile: Profile, node_id: NodeId | None = None) -> tuple[bool, list[Instance]]:
        """Remember a profile; returns whether it is news of the hardware, and the instances that now plan with it.

        `node_id`: whose corrections are in it. Raises OperatorError for a profile without two full grids.
        """
        key = (profile.shape_key, profile.hardware_key)
        news = self.profiles.learn(profile, node_id)
        if news and profile.measured:
            self.profiles.forget_estimates(profile.hardware_key, {one.profile_key for one in self.instances.values()})
        concerned = [one for one in self.instances.values() if one.profile_key == key]
        for one in concerned:
            known = self.profiles.estimator(key, one.node_id)
            if known is not None:
                one.load.know(known)
        return news, concerned

    def estimate_coming(self, hardware_key: HardwareKey) -> list[Instance]:
        """Estimate those that come, and that nobody measured, by what was measured on their hardware by now.

        Returns whom that was possible for. What is loaded without a profile is being measured, and was promised memory
        for that: its shape is estimated for nobody.
        """
        unknown = [
            one
            for one in self.instances.values()
            if one.profile_key[1] == hardware_key and one.profile_key not in self.profiles
        ]
        here = {one.profile_key for one in unknown if one.resting or one.state not in _COMING}
        coming = [one for one in unknown if one.profile_key not in here]
        for one in coming:
            self._estimate(one.shape, one.profile_key)
            known = self.profiles.estimator(one.profile_key, one.node_id)
            if known is not None:
                one.load.know(known)
        return [one for one in coming if one.profile_key in self.profiles]

    def _estimate(self, shape: ModelShape, key: ProfileKey) -> None:
        """Estimate a shape that was never measured on some hardware, from those that were."""
        hosted = [one.spec.shape for one in self.models.values()]
        shapes = {one.key: one for hosts in hosted for one in (hosts, hosts.without_room())}
        self.profiles.estimate(shape, key[1], shapes)

    def draft(self, model: ModelRecord, node: NodeRecord, now: float) -> Instance:
        """Make an instance that does not count until it is added: for asking what if."""
        name, shape = model.spec.served_by, shape_on(node.spec, model.spec)
        key = (model.shape_key if shape is model.spec.shape else shape.key, node.spec.hardware_key)
        if key not in self.profiles and not any(each.profile_key == key for each in self.instances.values()):
            # What is loaded already without a profile is being measured, and was promised memory for that.
            self._estimate(shape, key)
        known = self.profiles.estimator(key, node.spec.id)
        estimator: Estimator = known or RoughEstimator(shape.weight_bytes)
        instance_id = InstanceId(f"{name}@{node.spec.id}#{self._loads_so_far}")
        room, block_tokens = room_of(shape), node.spec.block_tokens
        load = InstanceLoad(instance_id, estimator, ready_at_s=now, block_tokens=block_tokens, room=room)
        return Instance(instance_id, name, node.spec.id, shape, key, load, last_used_s=now)

    def add(self, instance: Instance) -> None:
        """Let a draft count."""
        self._loads_so_far += 1
        self.instances[instance.id] = instance
        self.node_of(instance).load.instances[instance.id] = instance.load

    def remove(self, instance: Instance) -> list[LiveRequest]:
        """Forget an instance and all that it holds; returns the requests that were assigned to it, now nowhere."""
        stranded = [self.requests[request_id] for request_id in instance.load.requests]
        for request in stranded:
            self.withdraw(request)
        node = self.node_of(instance)
        node.promised.release(instance.id)
        node.held.release(instance.id)
        node.station.cancel(instance.id)
        node.leaving = {key: where for key, where in node.leaving.items() if where != instance.id}
        node.dropping = {key: where for key, where in node.dropping.items() if where != instance.id}
        del node.load.instances[instance.id]
        del self.instances[instance.id]
        return stranded

    def assign(self, request: LiveRequest, instance: Instance, now: float) -> None:
        """Give a request to an instance, in the mirror; its node is told later."""
        request.load.joined_s = now
        instance.load.requests[request.load.shape.id] = request.load
        instance.last_used_s = now
        request.instance_id = instance.id

    def displace(self, instance: Instance) -> list[LiveRequest]:
        """Take all requests from an instance that must make room; returns those that its node must be told to drop.

        They may go on elsewhere at once; on this node, once it has let go of them.
        """
        displaced = [self.requests[request_id] for request_id in instance.load.requests]
        told = [request for request in displaced if request.submitted]
        for request in displaced:
            self.leave(request)
            self.waiting.add(request)
        return told

    def leave(self, request: LiveRequest) -> Instance | None:
        """Withdraw a request whose node must be told to drop it, if it was told to run it."""
        submitted = request.submitted
        instance = self.withdraw(request)
        if instance is not None and submitted:
            self.node_of(instance).leaving[request.load.shape.id] = instance.id
        return instance

    def left(self, node_id: NodeId, request_id: RequestId) -> bool:
        """Know that a node holds nothing of a request any more; says whether it had been told to let go of it."""
        return self.nodes[node_id].leaving.pop(request_id, None) is not None

    def withdraw(self, request: LiveRequest) -> Instance | None:
        """Take a request from the instance that it is assigned to; it must be computed again elsewhere."""
        if request.instance_id is None:
            return None
        instance = self.instances[request.instance_id]
        del instance.load.requests[request.load.shape.id]
        request.moves += request.submitted
        request.instance_id = None
        request.submitted = False
        request.load.computed_tokens = 0
        return instance
