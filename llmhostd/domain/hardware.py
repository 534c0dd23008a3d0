"""What is a node made of?"""

from enum import StrEnum

from llmhostd.domain.ids import HardwareKey, NodeId
from llmhostd.domain.words import Word


class NodeKind(StrEnum):
    """What computes. Requests go to CPU nodes first; GPU nodes take what those cannot serve in time (SLINFER §V)."""

    CPU = "cpu"
    GPU = "gpu"


class NodeSpec(Word):
    """One schedulable device domain: a set of CPU cores with their memory, or a GPU."""

    id: NodeId
    engine: str
    """Entry-point name of the engine plugin that runs here, e.g. `openvino`."""
    hardware_key: HardwareKey
    """CPU model, instruction sets and thread count: what decides how long an iteration takes."""
    cores: tuple[int, ...]
    memory_bytes: int
    """What instances on this node may hold together: weights, packed weights and KV."""
    kind: NodeKind = NodeKind.CPU
    block_tokens: int = 32
    """Tokens per KV block of its engine."""
    threads: int = 0
    """Threads that compute: fewer than `cores` where two of those share one physical core, or a quota allows no more.
    0: one per core."""

    @property
    def compute_threads(self) -> int:
        """How many threads an iteration runs on."""
        return self.threads or len(self.cores)
