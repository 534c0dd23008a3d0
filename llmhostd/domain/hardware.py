"""What is a node made of?"""

from enum import StrEnum

from llmhostd.domain.ids import HardwareKey, NodeId
from llmhostd.domain.words import Word


class NodeKind(StrEnum):
    """What computes. Requests go to CPU nodes first; GPU nodes take what those cannot serve in time (SLINFER §V)."""

    CPU = "cpu"
    GPU = "gpu"


class MemoryClaim(Word):
    """What one node was given of memory that several share."""

    weight: int
    """Its part of what is shared, in proportion to the others'."""
    fixed_bytes: int | None = None
    """By number instead: before anything is shared, as long as all such numbers fit together."""


class MemoryPool(Word):
    """Memory out of which several nodes of one box live: the machine's, or one NUMA domain's."""

    claims: tuple[MemoryClaim, ...]
    mine: int
    """Which of the claims is this node's."""
    domain: int | None = None
    """NUMA domain; None: everything that this machine, or its control group, has."""
    cores: tuple[int, ...] = ()
    """Of the domain: whoever is bound to some of these lives out of it."""


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
    numa_domains: tuple[int, ...] = ()
    """NUMA domains that its memory should come from; empty: wherever the kernel finds some."""
    memory_pools: tuple[MemoryPool, ...] = ()
    """What bounds `memory_bytes` while the machine's memory changes; empty: nothing, it stays as it is."""
    device: str = ""
    """A GPU's UUID; empty for CPU nodes."""
    profile: str = ""
    """Absolute path of the file that an engine without a device takes its times from."""
    caveats: tuple[str, ...] = ()
    """What is slow or off on this device, whatever engine runs on it."""
    adapters: bool = False
    """Whether its engine computes low-rank adapters."""

    @property
    def compute_threads(self) -> int:
        """How many threads an iteration runs on."""
        return self.threads or len(self.cores)
