"""Which instance should a request fill first, which node a new instance, and which instance is only a fragment?

CPU nodes before GPU nodes (SLINFER §V). Among a model's instances the largest batch first (§VIII-B): a large batch can
grow by preemption, a small one that gets nothing new ends soon and gives its memory back. A new instance goes where it
leaves least over, so that whole nodes stay free for large ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from llmhostd.domain.hardware import NodeKind
from llmhostd.domain.ids import InstanceId
from llmhostd.domain.model import ModelState

NEARNESS = {ModelState.RESIDENT: 0, ModelState.WARM: 1, ModelState.LOADING: 2, ModelState.COLD: 3}
"""How near an instance is to its first token. COLD: it waits for memory. In other states it takes no requests."""


@dataclass(frozen=True, slots=True)
class PackingPolicy:
    """How tightly the box is filled. All of it off: instances as they were last used, nodes as they come."""

    cpu_first: bool = True
    """Requests go to CPU nodes as long as these serve them in time."""
    leave_idle_gpus: bool = True
    """An idle instance on a GPU is passed over for a new one on a CPU node that serves the request in time, its load
    included, and takes nobody's place: what is kept for later keeps no GPU from what CPUs cannot do. False: instances
    are filled before new ones are made, as in SLINFER, which keeps no idle ones."""
    largest_batch_first: bool = True
    """Of a model's instances, the largest batch is filled first; otherwise the last used."""
    best_fit: bool = True
    """A new instance goes to the node on which least memory is left over; otherwise to the first that takes it."""
    instances_per_node: int = 0
    """Instances that a node serves at once: 1 is no sharing; 0 is as many as its memory holds."""
    fragment_keep_s: float = 30.0
    """An idle instance is unloaded after this long when another one of its model is preferred to it."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How an instance looks to whoever fills the box."""

    id: InstanceId
    kind: NodeKind
    state: ModelState
    batch: int
    """Requests on it that somebody waits for."""
    last_used_s: float
    """When something was last computed on it or assigned to it."""


def preference(one: Standing, policy: PackingPolicy) -> tuple[bool, bool, int, int, float]:
    """Sort key among a model's instances, the best first: of equals, the last used.

    One that can run now comes before one that still loads, whatever their batches: waiting for a load costs somebody.
    """
    loads = one.state in (ModelState.LOADING, ModelState.COLD)
    batch = one.batch if policy.largest_batch_first else 0
    return _later(one.kind, policy), loads, -batch, NEARNESS[one.state], -one.last_used_s


def fit(kind: NodeKind, left_bytes: int, policy: PackingPolicy) -> tuple[bool, bool, int]:
    """Sort key among nodes for a new instance, the best first.

    `left_bytes`: what would be free with it; negative where others must give way, which comes last, roomiest first.
    """
    size = abs(left_bytes) if policy.best_fit or left_bytes < 0 else 0
    return _later(kind, policy), left_bytes < 0, size


def resting(one: Standing, policy: PackingPolicy) -> bool:
    """Whether an instance holds a GPU that it needs for nobody, so that a CPU node is asked before it."""
    return policy.leave_idle_gpus and _later(one.kind, policy) and not one.batch and one.state is not ModelState.LOADING


def fragments(instances: Sequence[Standing], policy: PackingPolicy) -> list[InstanceId]:
    """Name the instances of one model, in order of loading, that are better reclaimed once nothing runs there.

    All but the one that is filled first (SLINFER fig. 20c).
    """
    taking = [one for one in instances if one.state in NEARNESS]
    return [one.id for one in sorted(taking, key=lambda one: preference(one, policy))[1:]]


def _later(kind: NodeKind, policy: PackingPolicy) -> bool:
    return policy.cpu_first and kind is NodeKind.GPU
