"""How do exclusive instances with fixed concurrency limits serve? The baselines of SLINFER §IX-A, as small minds.

`sllm` gives every instance a GPU, `sllm+c` also CPU nodes, and first; `sllm+c+s` gives an instance half a node, if its
model fits there. An instance takes as many requests at once as was measured to be safe; beyond that the next instance
is loaded, or the request waits, and is dropped when its first token would be late. Idle instances are kept a moment.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from llmhostd.domain import events, reports
from llmhostd.domain.actions import HostAction, Refusal, RefuseRequest
from llmhostd.domain.commands import CancelRequest, LoadInstance, SubmitRequest, UnloadInstance
from llmhostd.domain.events import HostEvent
from llmhostd.domain.hardware import NodeKind, NodeSpec
from llmhostd.domain.ids import HardwareKey, InstanceId, ModelName, NodeId, RequestId, ShapeKey
from llmhostd.domain.model import ModelSpec, ModelState
from llmhostd.domain.profile import Profile
from llmhostd.domain.request import RequestShape

HALVES = 2


@dataclass(frozen=True, slots=True)
class BaselinePolicy:
    """Which baseline."""

    limits: Mapping[tuple[ShapeKey, HardwareKey], int]
    """Requests at once on an instance; a pair that is not in it cannot be served."""
    widths: Mapping[tuple[ShapeKey, HardwareKey], int]
    """Halves of a node that an instance takes: 1 or 2."""
    kinds: tuple[NodeKind, ...] = (NodeKind.CPU, NodeKind.GPU)
    """Nodes that are used, the first kind first."""
    keep_alive_s: float = 1.0


@dataclass(slots=True)
class _Instance:
    id: InstanceId
    model: ModelName
    node: "_Node"
    width: int
    limit: int
    ready_s: float
    """When its load is expected to be over."""
    idle_since_s: float
    running: dict[RequestId, RequestShape] = field(default_factory=dict)
    """As they would have to be submitted elsewhere."""
    leaving: bool = False


@dataclass(slots=True)
class _Node:
    spec: NodeSpec
    up: bool = False
    instances: dict[InstanceId, _Instance] = field(default_factory=dict)

    @property
    def free_halves(self) -> int:
        return HALVES - sum(each.width for each in self.instances.values())


class ExclusiveMind:
    """Decides for one box as the baselines do. Same events at the same times: same actions."""

    def __init__(self, nodes: Sequence[NodeSpec], policy: BaselinePolicy) -> None:
        self._policy = policy
        by_kind = [spec for kind in policy.kinds for spec in nodes if spec.kind is kind]
        self._nodes: dict[NodeId, _Node] = {spec.id: _Node(spec) for spec in by_kind}
        self._models: dict[ModelName, ModelSpec] = {}
        self._profiles: dict[tuple[ShapeKey, HardwareKey], Profile] = {}
        self._queue: dict[RequestId, RequestShape] = {}
        """In order of arrival; those who come back are at its end."""
        self._loads = 0
        self._answers: dict[type, Callable[[Any, float], list[HostAction]]] = {
            events.ModelAdded: self._model_added,
            events.ProfileKnown: self._profile_known,
            events.RequestArrived: self._arrived,
            events.RequestCancelled: self._cancelled,
            events.ClockTicked: self._ticked,
            reports.IterationReported: self._iterated,
            reports.InstanceReported: self._instance_reported,
            reports.RequestReturned: self._returned,
            reports.NodeUp: self._node_up,
            reports.NodeDown: self._node_down,
        }

    def step(self, event: HostEvent, now: float) -> list[HostAction]:
        """Hear one event; what a baseline knows nothing of changes nothing."""
        answer = self._answers.get(type(event))
        return answer(event, now) if answer else []

    def _model_added(self, event: events.ModelAdded, now: float) -> list[HostAction]:  # noqa: ARG002 - as the others
        self._models[event.spec.name] = event.spec
        return []

    def _profile_known(self, event: events.ProfileKnown, now: float) -> list[HostAction]:  # noqa: ARG002
        self._profiles[event.profile.shape_key, event.profile.hardware_key] = event.profile
        return []

    def _arrived(self, event: events.RequestArrived, now: float) -> list[HostAction]:
        if event.request.model not in self._models:
            return [_refuse(event.request, Refusal.MODEL_BROKEN, f"no model {event.request.model} is known")]
        self._queue[event.request.id] = event.request
        return self._serve(now)

    def _cancelled(self, event: events.RequestCancelled, now: float) -> list[HostAction]:
        self._queue.pop(event.request_id, None)
        one = self._place_of(event.request_id)
        if one is None:
            return []
        self._leaves(one, event.request_id, now)
        because, node_id = "nobody waits for it any more", one.node.spec.id
        return [CancelRequest(node_id=node_id, request_id=event.request_id, because=because), *self._serve(now)]

    def _iterated(self, event: reports.IterationReported, now: float) -> list[HostAction]:
        one = self._nodes[event.node_id].instances.get(event.instance_id)
        if one is None:
            return []
        finished = False
        for row in event.rows:
            shape = one.running.get(row.request_id)
            if shape is None:
                continue
            if row.finish:
                self._leaves(one, row.request_id, now)
                finished = True
            elif row.tokens:
                one.running[row.request_id] = _after(shape, len(row.tokens), now)
        return self._serve(now) if finished else []

    def _instance_reported(self, event: reports.InstanceReported, now: float) -> list[HostAction]:
        if event.state is not ModelState.COLD:
            return []
        gone = self._nodes[event.node_id].instances.pop(event.instance_id, None)
        if gone:
            self._queue.update(gone.running)
        return self._serve(now)

    def _returned(self, event: reports.RequestReturned, now: float) -> list[HostAction]:
        one = self._place_of(event.request_id)
        if one is not None:
            self._queue[event.request_id] = self._leaves(one, event.request_id, now)
        return []

    def _node_up(self, event: reports.NodeUp, now: float) -> list[HostAction]:
        if event.node_id in self._nodes:
            self._nodes[event.node_id].up = True
        return self._serve(now)

    def _node_down(self, event: reports.NodeDown, now: float) -> list[HostAction]:
        node = self._nodes.get(event.node_id)
        if node:
            node.up = False
            for one in node.instances.values():
                self._queue.update(one.running)
            node.instances.clear()
        return self._serve(now)

    def _ticked(self, event: events.ClockTicked, now: float) -> list[HostAction]:  # noqa: ARG002 - time is `now`
        actions: list[HostAction] = []
        for one in self._instances():
            idle_s = now - max(one.idle_since_s, one.ready_s)
            if not one.running and not one.leaving and idle_s >= self._policy.keep_alive_s:
                one.leaving = True
                because = f"unused for {idle_s:.1f} s"
                actions.append(UnloadInstance(node_id=one.node.spec.id, instance_id=one.id, because=because))
        return actions + self._serve(now)

    def _serve(self, now: float) -> list[HostAction]:
        """Give places to those who wait, in order; drop whose first token is late already."""
        actions: list[HostAction] = []
        full: dict[ModelName, None] = {}
        for shape in list(self._queue.values()):
            late_s = now - shape.arrived_s - shape.slo.ttft_s
            if late_s > 0.0 and not shape.tokens_out:
                del self._queue[shape.id]
                actions.append(_refuse(shape, Refusal.OVERLOADED, f"waited {late_s:.2f} s longer than its TTFT SLO"))
            elif shape.model not in full:
                placed = self._place(shape, now)
                if placed:
                    del self._queue[shape.id]
                    actions += placed
                else:
                    full[shape.model] = None
        return actions

    def _place(self, shape: RequestShape, now: float) -> list[HostAction]:
        for one in self._instances():
            if one.model == shape.model and not one.leaving and len(one.running) < one.limit:
                return [self._submit(shape, one, now, f"request {len(one.running) + 1} of {one.limit} at once")]
        for node in sorted(self._nodes.values(), key=lambda each: self._order(each)):
            load = self._load(shape.model, node, now)
            if load:
                one = node.instances[load.instance_id]
                return [load, self._submit(shape, one, now, "on a new instance")]
        return []

    def _order(self, node: _Node) -> tuple[int, int]:
        """By kind; then those first that are half used."""
        return self._policy.kinds.index(node.spec.kind), node.free_halves

    def _load(self, model: ModelName, node: _Node, now: float) -> LoadInstance | None:
        shape = self._models[model].shape
        key = (shape.key, node.spec.hardware_key)
        profile, limit = self._profiles.get(key), self._policy.limits.get(key, 0)
        width = self._policy.widths.get(key, HALVES)
        if not node.up or profile is None or not limit or node.free_halves < width:
            return None
        self._loads += 1
        instance_id = InstanceId(f"{model}@{node.spec.id}#{self._loads}")
        ready_s = max([now, *(one.ready_s for one in node.instances.values())]) + profile.load_s
        node.instances[instance_id] = _Instance(instance_id, model, node, width, limit, ready_s, ready_s)
        return LoadInstance(
            node_id=node.spec.id, instance_id=instance_id, model=model, shape=shape, target=ModelState.WARM,
            profile=profile, because=f"every instance of {model} is full; {node.spec.id} has room",
        )  # fmt: skip

    def _submit(self, shape: RequestShape, one: _Instance, now: float, because: str) -> HostAction:
        """A request that waits for a load gets the time of that load on top of its SLO."""
        shape = msgspec.structs.replace(shape, grace_s=max(shape.grace_s, one.ready_s - now, 0.0))
        one.running[shape.id] = shape
        return SubmitRequest(node_id=one.node.spec.id, instance_id=one.id, request=shape, because=because)

    def _leaves(self, one: _Instance, request_id: RequestId, now: float) -> RequestShape:
        one.idle_since_s = now
        return one.running.pop(request_id)

    def _place_of(self, request_id: RequestId) -> _Instance | None:
        return next((one for one in self._instances() if request_id in one.running), None)

    def _instances(self) -> Iterator[_Instance]:
        """By kind of node, then in order of loading."""
        return (one for node in self._nodes.values() for one in node.instances.values())


def _after(shape: RequestShape, tokens: int, now: float) -> RequestShape:
    first_s = now if shape.first_token_s is None else shape.first_token_s
    return msgspec.structs.replace(shape, tokens_out=shape.tokens_out + tokens, first_token_s=first_s)


def _refuse(shape: RequestShape, refusal: Refusal, because: str) -> RefuseRequest:
    return RefuseRequest(request_id=shape.id, refusal=refusal, retry_after_s=0.0, expected_ttft_s=None, because=because)
