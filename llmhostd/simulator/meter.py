"""What do an experiment's nodes do with their time and their memory?"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from llmhostd.domain.hardware import NodeKind, NodeSpec
from llmhostd.domain.ids import InstanceId, NodeId


@dataclass(slots=True)
class _Node:
    kind: NodeKind
    instances: dict[InstanceId, float] = field(default_factory=dict)
    """When each came."""
    used_since_s: float = 0.0
    used_s: float = 0.0
    decoded: int = 0


class Meter:
    """Adds up. Node use is counted until the last arrival: what runs out after it would dilute the average."""

    def __init__(self, nodes: Sequence[NodeSpec], *, until_s: float) -> None:
        self.cold_starts = 0
        self._until_s = until_s
        self._nodes = {spec.id: _Node(spec.kind) for spec in nodes}
        self._lifetime_s = self._resizing_s = 0.0
        self._kv_byte_s = self._kv_used_byte_s = 0.0

    def came(self, node_id: NodeId, instance_id: InstanceId, now: float) -> None:
        """An instance is being loaded: from now on its node is used."""
        node = self._nodes[node_id]
        if not node.instances:
            node.used_since_s = now
        node.instances[instance_id] = now
        self.cold_starts += 1

    def went(self, node_id: NodeId, instance_id: InstanceId, now: float) -> None:
        """An instance is gone."""
        node = self._nodes[node_id]
        self._lifetime_s += now - node.instances.pop(instance_id)
        if not node.instances:
            node.used_s += self._counted_s(node.used_since_s, now)

    def decoded(self, node_id: NodeId, tokens: int, now: float) -> None:
        """Tokens after the first came out of a node."""
        if now <= self._until_s:
            self._nodes[node_id].decoded += tokens

    def resized(self, seconds: float) -> None:
        """A KV pool was being resized for so long."""
        self._resizing_s += seconds

    def holds(self, kv_bytes: int, used_bytes: int, seconds: float) -> None:
        """All pools together hold this much, and of it this much is used, for so long."""
        self._kv_byte_s += kv_bytes * seconds
        self._kv_used_byte_s += used_bytes * seconds

    def end(self, now: float) -> None:
        """Let what is still there count."""
        for node_id, node in self._nodes.items():
            for instance_id in list(node.instances):
                self.went(node_id, instance_id, now)

    def nodes_used(self, kind: NodeKind) -> float:
        """How many nodes of a kind had an instance, on average."""
        return self._used_s(kind) / max(self._until_s, 1e-9)

    def decode_tokens_per_node_s(self, kind: NodeKind) -> float:
        """How fast nodes of a kind decode while they are used."""
        decoded = sum(node.decoded for node in self._nodes.values() if node.kind is kind)
        used_s = self._used_s(kind)
        return decoded / used_s if used_s else 0.0

    @property
    def kv_utilization(self) -> float:
        """Used bytes over allocated bytes, 0-1."""
        return self._kv_used_byte_s / self._kv_byte_s if self._kv_byte_s else 0.0

    @property
    def kv_scaling_share(self) -> float:
        """Time in resizes over the lifetime of instances, 0-1."""
        return self._resizing_s / self._lifetime_s if self._lifetime_s else 0.0

    def _used_s(self, kind: NodeKind) -> float:
        return sum(node.used_s for node in self._nodes.values() if node.kind is kind)

    def _counted_s(self, begin_s: float, end_s: float) -> float:
        return max(min(end_s, self._until_s) - begin_s, 0.0)
