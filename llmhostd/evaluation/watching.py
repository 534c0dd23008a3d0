"""What did a simulated box do with its nodes, and how did it miss whom it missed?"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from enum import StrEnum

from llmhostd.domain.actions import HostAction, Refusal, RefuseRequest
from llmhostd.domain.commands import LoadInstance
from llmhostd.domain.events import HostEvent, RequestArrived
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import InstanceId, ModelName, NodeId, RequestId
from llmhostd.domain.model import ModelState
from llmhostd.domain.reports import InstanceReported, IterationReported, LoadFailed
from llmhostd.domain.request import RequestShape
from llmhostd.domain.words import Word
from llmhostd.simulator.minds import DecidesForBox

READY = (ModelState.WARM, ModelState.RESIDENT)


class Miss(StrEnum):
    """What became of a request whose promise was not kept. What would have helped is another question (`relief`)."""

    LATE = "late"
    """Served at once, it would have been late, or others: it was refused; or it was served late."""
    COLD = "cold"
    """No instance was there, and with the time of a load its first token would have been late."""
    NO_ROOM = "no room"
    """No node had the memory for it."""
    TOO_LARGE = "too large"
    """It can never fit on this box."""
    OTHER = "other"
    """No node was up, or the model is broken."""


class NodeUse(Word):
    """What one node did, over the time of a simulation. Shares, 0-1."""

    node: NodeId
    busy: float
    """Of the time it computed."""
    loading: float
    """Of the time a load was ordered and not yet done."""
    memory: float
    """Of its memory held, on average: weights and KV pools."""
    memory_peak: float


class _Node:
    def __init__(self, spec: NodeSpec) -> None:
        self.memory_bytes = spec.memory_bytes
        self.busy_s = self.loading_s = self.byte_s = self.since_s = 0.0
        self.held: dict[InstanceId, int] = {}
        self.loading: set[InstanceId] = set()
        self.peak_bytes = 0

    def hold(self, instance_id: InstanceId, held_bytes: int, now: float) -> None:
        self.settle(now)
        self.held[instance_id] = held_bytes
        if not held_bytes:
            del self.held[instance_id]
        self.peak_bytes = max(self.peak_bytes, sum(self.held.values()))

    def settle(self, now: float) -> None:
        self.byte_s += sum(self.held.values()) * (now - self.since_s)
        self.loading_s += (now - self.since_s) * bool(self.loading)
        self.since_s = now


class WatchedMind:
    """A mind, and an eye on what it hears and says."""

    def __init__(self, mind: DecidesForBox, nodes: Sequence[NodeSpec]) -> None:
        self._mind = mind
        self._nodes = {spec.id: _Node(spec) for spec in nodes}
        self._asked: dict[RequestId, RequestShape] = {}
        self._model_of: dict[InstanceId, ModelName] = {}
        self._ready: dict[ModelName, set[InstanceId]] = defaultdict(set)
        self.refused: dict[RequestId, Miss] = {}
        """Of each request that was ever refused: why, the last time."""
        self.cold_starts: Counter[ModelName] = Counter()

    def step(self, event: HostEvent, now: float) -> list[HostAction]:
        """See `DecidesForBox`."""
        self._hear(event, now)
        actions = self._mind.step(event, now)
        for action in actions:
            self._see(action, now)
        return actions

    def use(self, now: float) -> tuple[NodeUse, ...]:
        """Say what the nodes did until now."""
        seconds = max(now, 1e-9)
        for node in self._nodes.values():
            node.settle(now)
        return tuple(
            NodeUse(
                node=node_id,
                busy=min(node.busy_s / seconds, 1.0),
                loading=min(node.loading_s / seconds, 1.0),
                memory=node.byte_s / seconds / max(node.memory_bytes, 1),
                memory_peak=node.peak_bytes / max(node.memory_bytes, 1),
            )
            for node_id, node in self._nodes.items()
        )

    def _hear(self, event: HostEvent, now: float) -> None:
        match event:
            case IterationReported():
                self._nodes[event.node_id].busy_s += event.duration_s
            case RequestArrived():
                self._asked[event.request.id] = event.request
            case InstanceReported():
                self._report(event, now)
            case LoadFailed():
                self._nodes[event.node_id].hold(event.instance_id, 0, now)
                self._nodes[event.node_id].loading.discard(event.instance_id)

    def _report(self, event: InstanceReported, now: float) -> None:
        node = self._nodes[event.node_id]
        gone = event.state is ModelState.COLD
        node.hold(event.instance_id, 0 if gone else event.held_bytes + event.kv_bytes, now)
        if event.state is not ModelState.LOADING:
            node.loading.discard(event.instance_id)
        ready = self._ready[self._model_of[event.instance_id]]
        if event.state in READY:
            ready.add(event.instance_id)
        else:
            ready.discard(event.instance_id)

    def _see(self, action: HostAction, now: float) -> None:
        if isinstance(action, LoadInstance):
            node = self._nodes[action.node_id]
            node.settle(now)
            node.loading.add(action.instance_id)
            self._model_of[action.instance_id] = action.model
            self.cold_starts[action.model] += 1
        elif isinstance(action, RefuseRequest):
            self.refused[action.request_id] = self._miss(action)

    def _miss(self, action: RefuseRequest) -> Miss:
        match action.refusal:
            case Refusal.NO_MEMORY:
                return Miss.NO_ROOM
            case Refusal.TOO_LARGE:
                return Miss.TOO_LARGE
            case Refusal.OVERLOADED:
                return self._of_overload(action)
            case _:
                return Miss.OTHER

    def _of_overload(self, action: RefuseRequest) -> Miss:
        """A first token that would be late, of a model that is nowhere ready: the load takes too long."""
        shape = self._asked[action.request_id]
        late = action.expected_ttft_s is None or action.expected_ttft_s > shape.slo.ttft_s
        return Miss.COLD if late and not self._ready[shape.model] else Miss.LATE
