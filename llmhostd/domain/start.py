"""Where do weights lie, and what was seen of a start?"""

from enum import StrEnum

from llmhostd.domain.ids import HardwareKey, ModelName, NodeId, ShapeKey
from llmhostd.domain.model import WeightFormat
from llmhostd.domain.words import Word


class StorageTier(StrEnum):
    """Where weights come from, the nearest to the device first (ServerlessLLM §4)."""

    MEMORY = "memory"
    """Host memory: on a CPU node the page cache, where they are used in place."""
    DISK = "disk"
    REMOTE = "remote"


TIERS = tuple(StorageTier)
"""All of them; starts are foretold too often to ask the enumeration for its members."""


class TierBytes(Word):
    """How the bytes of a checkpoint are spread over tiers; each counts once, where it is nearest."""

    memory_bytes: int = 0
    disk_bytes: int = 0
    remote_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """All of them."""
        return self.memory_bytes + self.disk_bytes + self.remote_bytes

    def of(self, tier: StorageTier) -> int:
        """Those of one tier."""
        if tier is StorageTier.MEMORY:
            return self.memory_bytes
        return self.disk_bytes if tier is StorageTier.DISK else self.remote_bytes


class StartSeen(Word):
    """One start, from the decision to load until the first iteration was over, if somebody waited. Seconds."""

    model: ModelName
    node_id: NodeId
    hardware_key: HardwareKey
    shape_key: ShapeKey
    weights: WeightFormat
    layers: int
    weight_bytes: int
    came_from: TierBytes = TierBytes()
    """As its worker counted; empty when the engine does not say."""
    queue_s: float = 0.0
    """From the decision to its turn: other loads, memory that others had to give back."""
    read_s: float = 0.0
    """Until its last byte was in memory; overlaps with what follows. 0 when the engine does not say."""
    load_s: float = 0.0
    """From its turn to warm: read, build and compile. 0: it was warm already."""
    beside: bool = False
    """Whether others computed on the node for a good part of its load."""
    fresh: bool = False
    """Whether its shape was never loaded before by that worker: what is compiled once per shape was compiled."""
    compile_s: float = 0.0
    """What was compiled in its load; overlaps with reading."""
    pack_s: float | None = None
    """What its first iteration took beyond its own work; None: nobody waited for one."""
    begun_s: float = 0.0
    """Of its own work, what was done while weights were still being read."""
    first_s: float | None = None
    """From warm until its first iteration was over: packing, its own work, and waits for neighbours' iterations."""
    hops_s: float | None = None
    """From its turn, what was neither load nor iteration: messages, and one thread's wait for another. None: nobody
    waited for it."""
    packed_beside: bool = False
    """Whether another one loaded meanwhile."""
    estimated_s: float | None = None
    """What was foretold for queue, load and, if somebody waited, the first iteration; None: it was a rest's end."""

    @property
    def start_s(self) -> float:
        """What `estimated_s` foretold."""
        return self.queue_s + self.load_s + (self.first_s or 0.0)

    @property
    def error(self) -> float | None:
        """How far the estimate was off, as a part of the truth."""
        if self.estimated_s is None or self.start_s <= 0.0:
            return None
        return abs(self.estimated_s - self.start_s) / self.start_s
