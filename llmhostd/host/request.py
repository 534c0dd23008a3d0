"""What does the host know of one admitted request?"""

from dataclasses import dataclass

from llmhostd.compute.workload import RequestLoad
from llmhostd.domain.ids import InstanceId, NodeId


@dataclass(slots=True)
class LiveRequest:
    """One admitted request. `load` is also in the mirror of the instance that it is assigned to."""

    load: RequestLoad
    instance_id: InstanceId | None = None
    """None: it waits in a queue of the host."""
    submitted: bool = False
    """Whether its node was told; before, it waits for the memory or the profile of its instance."""
    told: tuple[NodeId, InstanceId] | None = None
    """Who was last told to run it. Only what they report of it counts, even after it lost its place there, until
    somebody else is told: the shells keep the same rule, so that all speak of the same tokens."""
    because: str = ""
    """Why it was assigned to this instance."""
    moves: int = 0
    """How often it lost its place and moved as its tokens."""
