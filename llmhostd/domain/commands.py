"""What does the host mind ask of a node? Each is an action of `host`, a frame on the wire, and an event of `node`."""

from llmhostd.domain.ids import InstanceId, ModelName, NodeId, RequestId
from llmhostd.domain.model import ModelShape, ModelState
from llmhostd.domain.profile import Profile
from llmhostd.domain.request import RequestShape
from llmhostd.domain.words import Message


class LoadInstance(Message):
    """Bring a model to `warm` (or, by a first dummy iteration, to `resident`)."""

    node_id: NodeId
    instance_id: InstanceId
    model: ModelName
    shape: ModelShape
    target: ModelState
    profile: Profile | None
    """None: this shape was never measured on this hardware; the node measures it once it is loaded."""
    because: str
    arriving: bool = False
    """As its worker finds: weights are still to come over a network. It can be built from `WeightsNear` on."""


class RestInstance(Message):
    """Send a resident instance back to `warm`: its packed weights and KV are given back to the system."""

    node_id: NodeId
    instance_id: InstanceId
    because: str


class UnloadInstance(Message):
    """Remove an instance that runs nothing."""

    node_id: NodeId
    instance_id: InstanceId
    because: str


class SubmitRequest(Message):
    """Run a request on an instance, which may still be loading. What was staged there is not computed again."""

    node_id: NodeId
    instance_id: InstanceId
    request: RequestShape
    because: str


class StageRequest(Message):
    """Compute the context of a request ahead, whose stream goes on elsewhere and is to come here; draw no token of it.

    One round of a live migration (ServerlessLLM §5.3). What was computed is told by rows of `IterationReported`. The
    stage ends with `SubmitRequest`, which makes it a request like any, or with `CancelRequest` or `RecallRequest`; a
    node that gives it up says so with `RequestReturned`.
    """

    node_id: NodeId
    instance_id: InstanceId
    request: RequestShape
    """With the output tokens that are known in this round."""
    known_tokens: int
    """Context tokens that earlier rounds of this stage brought; 0: it begins."""
    because: str


class CancelRequest(Message):
    """Nobody waits for it any more (or it moves elsewhere): free what it holds."""

    node_id: NodeId
    request_id: RequestId
    because: str


class RecallRequest(Message):
    """Give a request back, to go on elsewhere as its tokens.

    Answered by `RequestReturned`, or by its last row if it ends before; until then it may say another token.
    """

    node_id: NodeId
    request_id: RequestId
    because: str


class MeasureProfile(Message):
    """Measure (again) the shape of a loaded instance."""

    node_id: NodeId
    instance_id: InstanceId
    because: str
    asked: bool = False
    """Somebody asked for it, and may be watching: it goes before what is only to become finer."""


class LearnProfile(Message):
    """Plan with what another node of the same hardware measured; there is no need to measure that here.

    Or with an estimate by other shapes, until it is measured.
    """

    node_id: NodeId
    instance_id: InstanceId
    profile: Profile
    because: str


class KeepWeights(Message):
    """Bring a model's weights into host memory, and keep them there until told otherwise. Answered by `WeightsKept`."""

    node_id: NodeId
    model: ModelName
    because: str


class ReleaseWeights(Message):
    """Let the system take back the memory in which a model's weights were kept."""

    node_id: NodeId
    model: ModelName
    because: str


NodeCommand = (
    LoadInstance
    | RestInstance
    | UnloadInstance
    | SubmitRequest
    | StageRequest
    | CancelRequest
    | RecallRequest
    | MeasureProfile
    | LearnProfile
)
