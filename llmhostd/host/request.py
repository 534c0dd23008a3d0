"""What does the host know of one live request?"""

from dataclasses import dataclass, field

from llmhostd.compute.workload import RequestLoad
from llmhostd.domain.ids import InstanceId, NodeId, RequestId


@dataclass(frozen=True, slots=True)
class Hope:
    """Why a newcomer waits for its first place instead of being refused at once."""

    node_id: NodeId
    """Where."""
    at_s: float
    """When a place is expected."""
    until_s: float
    """Whoever has none by then is refused."""
    excused: bool
    """Whether the wait is added to its TTFT SLO, as the wait for a load is."""
    because: str
    moving: tuple[RequestId, ...] = ()
    """Streams that are moving live to give way to it."""


@dataclass(frozen=True, slots=True)
class GivenBack:
    """What is remembered of a node that gave a request back."""

    times: int
    """In a row, without a token of its stream in between."""
    tokens_out: int
    """How many it had."""
    until_s: float
    """Until then it is not sent there again."""


@dataclass(slots=True)
class LiveRequest:
    """One request that was not refused. `load` is also in the mirror of the instance that it is assigned to."""

    load: RequestLoad
    instance_id: InstanceId | None = None
    """None: it waits in a queue of the host."""
    submitted: bool = False
    """Whether its node was told; before, it waits for the memory or the profile of its instance."""
    told: tuple[NodeId, InstanceId] | None = None
    """Who was last told to run it. Only what they report of it counts, even after it lost its place there, until
    somebody else is told: the shells keep the same rule, so that all speak of the same tokens."""
    hope: Hope | None = None
    """Of a newcomer that waits for its first place, and may still be refused; None: it was admitted."""
    because: str = ""
    """Why it was assigned to this instance."""
    moves: int = 0
    """How often it lost its place and moved as its tokens."""
    given_back: dict[NodeId, GivenBack] = field(default_factory=dict)
    """By whom. What a node lacked for it, it may lack for long, whatever the host's sums say."""

    def gave_back(self, node_id: NodeId, now: float, pause_s: float, most_s: float) -> None:
        """Know that a node could not keep it: that one is left alone for a pause, twice as long each time."""
        before, said = self.given_back.get(node_id), self.load.tokens_out
        times = before.times + 1 if before is not None and before.tokens_out == said else 1
        wait_s = min(pause_s * 2 ** min(times - 1, 30), most_s)
        self.given_back[node_id] = GivenBack(times, said, now + wait_s)

    def may_go_to(self, node_id: NodeId, now: float) -> bool:
        """Whether a node is not left alone because it gave it back."""
        return node_id not in self.given_back or now >= self.given_back[node_id].until_s
