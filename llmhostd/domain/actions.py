"""What does the host mind decide, beside commands to nodes? Every decision carries its reason."""

from enum import StrEnum

from llmhostd.domain.commands import KeepWeights, NodeCommand, ReleaseWeights
from llmhostd.domain.ids import InstanceId, ModelName, NodeId, RequestId
from llmhostd.domain.start import StartSeen
from llmhostd.domain.words import Message


class Refusal(StrEnum):
    """Why a request is not served; the API maps each to a status (see `api.errors`)."""

    OVERLOADED = "overloaded"
    """It would be late, or make others late: 429 with Retry-After."""
    NO_MEMORY = "no_memory"
    """It does not fit now: 429 with Retry-After."""
    UNAVAILABLE = "unavailable"
    """No node is up or the daemon is draining: 503."""
    MODEL_BROKEN = "model_broken"
    """The model cannot be loaded or is quarantined: 503 with the reason."""
    TOO_LARGE = "too_large"
    """It can never fit on this box: 400."""


class RefuseRequest(Message):
    """Tell the caller at once that its SLO cannot be met."""

    request_id: RequestId
    refusal: Refusal
    retry_after_s: float
    expected_ttft_s: float | None
    """What shadow validation predicted, when it got that far."""
    because: str


class QuarantineModel(Message):
    """A model crashed its worker several times in a row."""

    model: ModelName
    because: str


class GiveUpPlacement(Message):
    """What was loaded when an earlier run of the daemon ended is not loaded again."""

    model: ModelName
    node_id: NodeId
    because: str


class DeclineMove(Message):
    """A request that an operator wanted elsewhere stays where it is."""

    request_id: RequestId
    node_id: NodeId
    because: str


class StartEnded(Message):
    """A start is over: what was seen of it is to be remembered."""

    node_id: NodeId
    instance_id: InstanceId
    seen: StartSeen
    because: str
    """What it took, beside what was foretold."""


HostAction = (
    NodeCommand
    | RefuseRequest
    | QuarantineModel
    | GiveUpPlacement
    | DeclineMove
    | StartEnded
    | KeepWeights
    | ReleaseWeights
)
