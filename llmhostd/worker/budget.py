"""How much may this node's instances hold together, as the machine and the engine allow it now?"""

from llmhostd.devices.budget import BudgetWatch
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import InstanceId
from llmhostd.domain.node_events import BudgetChanged, NodeEvent
from llmhostd.domain.reports import NodeMemoryChanged
from llmhostd.memory.machine_share import MachineMemoryPolicy
from llmhostd.worker.link import Link


class Budget:
    """Follows the machine, and takes off what the engine would not give back."""

    def __init__(self, spec: NodeSpec, policy: MachineMemoryPolicy, link: Link) -> None:
        self._node_id = spec.id
        self._link = link
        self._watch = BudgetWatch(spec, policy)
        self._bytes = spec.memory_bytes
        self._lost_bytes = 0
        self.look_every_s = policy.look_every_s if spec.memory_pools else None
        """How long one may sleep without looking; None: for ever."""

    def look(self, now: float) -> list[NodeEvent]:
        """Look at the machine, if it is time to; returns what the mind must hear."""
        moved = self._watch.moved(now)
        if moved is None:
            return []
        self._bytes = moved.bytes
        return self._changed(moved.because)

    def lost(self, size_bytes: int, instance_id: InstanceId) -> list[NodeEvent]:
        """Take off what an instance kept although it was destroyed: nobody can have it until this worker ends."""
        if not size_bytes:
            return []
        self._lost_bytes += size_bytes
        return self._changed(f"{instance_id} could not be destroyed and keeps {size_bytes / 1e6:.0f} MB")

    def _changed(self, because: str) -> list[NodeEvent]:
        left_bytes = max(0, self._bytes - self._lost_bytes)
        self._link.send(NodeMemoryChanged(node_id=self._node_id, memory_bytes=left_bytes, because=because))
        return [BudgetChanged(memory_bytes=left_bytes, because=because)]
