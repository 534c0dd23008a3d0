"""What happened? Everything that the host mind hears."""

from llmhostd.domain.ids import ModelName, NodeId, RequestId
from llmhostd.domain.model import ModelSpec
from llmhostd.domain.profile import Profile
from llmhostd.domain.reports import NodeDown, NodeReport
from llmhostd.domain.request import RequestShape
from llmhostd.domain.start import StartSeen, TierBytes
from llmhostd.domain.words import Message


class ModelAdded(Message):
    """A model may be asked for from now on, or changed its spec."""

    spec: ModelSpec


class ModelRemoved(Message):
    """A model may not be asked for any more; what runs, runs to its end."""

    name: ModelName


class ModelReleased(Message):
    """An operator looked at a quarantined model and lets it try again."""

    name: ModelName


class QuarantineKnown(Message):
    """A model took its workers down in an earlier run of the daemon, and nobody has released it since."""

    model: ModelName
    because: str


class ProfileKnown(Message):
    """A profile from an earlier run of the daemon."""

    profile: Profile


class StartsRemembered(Message):
    """What earlier runs of the daemon saw of starts on this hardware, the oldest first."""

    starts: tuple[StartSeen, ...]


class WeightsLocated(Message):
    """Somebody looked where a model's weights lie."""

    model: ModelName
    lies: TierBytes


class RequestArrived(Message):
    """A caller asks."""

    request: RequestShape


class RequestCancelled(Message):
    """A caller is gone, or has enough (a stop string matched)."""

    request_id: RequestId


class WarmUpAsked(Message):
    """An operator, or the start-up, wants a model loaded before anybody asks."""

    name: ModelName


class PlacementKnown(Message):
    """A model was loaded on a node when an earlier run of the daemon ended."""

    model: ModelName
    node_id: NodeId
    resident: bool
    """Its weights were packed; otherwise it was warm."""
    unused_s: float
    """How long nobody had used it, until now."""


class UnloadAsked(Message):
    """An operator wants a model's instances gone once they are idle."""

    name: ModelName


class MeasureAsked(Message):
    """An operator wants a model's profile measured (again) on every node that has it; where none has, it is loaded."""

    name: ModelName


class DrainAsked(Message):
    """An operator wants a node empty: nothing new goes there, what runs moves elsewhere as its tokens or ends there."""

    node_id: NodeId


class DrainEnded(Message):
    """An operator gives a drained node back to the scheduler."""

    node_id: NodeId


class MoveAsked(Message):
    """An operator wants a request to go on on another node."""

    request_id: RequestId
    node_id: NodeId


class ClockTicked(Message):
    """Time passed; keep-alives and retries are looked at."""


HostEvent = (
    ModelAdded
    | ModelRemoved
    | ModelReleased
    | QuarantineKnown
    | ProfileKnown
    | StartsRemembered
    | WeightsLocated
    | RequestArrived
    | RequestCancelled
    | WarmUpAsked
    | PlacementKnown
    | UnloadAsked
    | MeasureAsked
    | DrainAsked
    | DrainEnded
    | MoveAsked
    | ClockTicked
    | NodeReport
    | NodeDown
)
