"""What does a node mind hear and decide? Inside one worker: none of these cross the wire."""

from llmhostd.domain.commands import NodeCommand
from llmhostd.domain.ids import InstanceId, RequestId
from llmhostd.domain.profile import Profile
from llmhostd.domain.request import FinishReason
from llmhostd.domain.words import Message, Word


class RowPlan(Word):
    """One request's part in an iteration."""

    request_id: RequestId
    tokens: int
    """Context tokens to compute: 1 for decode, the chunk for prefill."""
    sample: bool
    """Whether this part ends at the last context token, so that an output token is drawn."""


class RowDone(Word):
    """What an iteration did for one request."""

    request_id: RequestId
    computed_tokens: int
    """Context tokens whose KV this iteration computed: the plan's tokens. What `PrefixMatched` told is not in it."""
    new_tokens: int
    finish: FinishReason | None = None
    failed: str = ""
    """Why it came to nothing for this request alone."""


class InstanceLoaded(Message):
    """A load completed, or can do with the weights that are there."""

    instance_id: InstanceId
    held_bytes: int
    kv_bytes_per_block: int
    block_tokens: int
    filling: bool = False
    """Weights are still being read: its iterations can begin, but not end (`WeightsRead`)."""


class WeightsRead(Message):
    """More weights of an instance that is filling are there: what has begun can go on."""

    instance_id: InstanceId
    all_read: bool


class WeightsNear(Message):
    """So much of an instance's weights has come over the network that it can be built while the rest comes."""

    instance_id: InstanceId


class InstanceEmptied(Message):
    """A rest destroyed what was there and gave its memory back; the instance is to be built again."""

    instance_id: InstanceId


class InstanceBroken(Message):
    """An instance cannot be used any more: it must be destroyed, and its requests must go elsewhere."""

    instance_id: InstanceId
    because: str


class InstanceGone(Message):
    """An unload completed, or a load failed: nothing of it is held any more."""

    instance_id: InstanceId


class InstanceWeighed(Message):
    """What the engine really holds for an instance now, and how many KV blocks several of its requests share."""

    instance_id: InstanceId
    held_bytes: int
    """Beside KV."""
    kv_blocks: int
    shared_blocks: int
    """Blocks that the requests' tables name beyond once: a block in three tables counts two."""


class BudgetChanged(Message):
    """What instances on this node may hold together is now this."""

    memory_bytes: int
    because: str


class PrefixMatched(Message):
    """The runner found the first tokens of a request's context in its prefix cache: heard before they are planned."""

    request_id: RequestId
    cached_tokens: int


class IterationDone(Message):
    """The device is free again."""

    instance_id: InstanceId
    duration_s: float
    rows: tuple[RowDone, ...]
    settled: bool = True
    """Whether it took as long as others like it will: no weights were packed beside it."""


class IterationBegun(Message):
    """The device is free again: of an iteration all was computed that there are weights for.

    Nothing of it counts before an iteration of the same rows is done; that one need not compute it again.
    """

    instance_id: InstanceId
    duration_s: float


class IterationFailed(Message):
    """The device is free again, and the engine computed nothing of the iteration."""

    instance_id: InstanceId
    duration_s: float
    because: str


class KvResized(Message):
    """A resize completed, or failed: `kv_blocks` is what the engine has then. Heard after every `ResizeKv`."""

    instance_id: InstanceId
    kv_blocks: int
    took_s: float = 0.0


class ProfileUpdated(Message):
    """A measurement, or its coarse first stage, completed on this node."""

    instance_id: InstanceId
    profile: Profile
    complete: bool = True
    """False: a full but coarse grid, good enough to serve with; finer samples remain to be run."""


class DeviceIdle(Message):
    """Nothing else is to be heard now; what should the device do?"""


NodeEvent = (
    NodeCommand
    | InstanceLoaded
    | WeightsRead
    | WeightsNear
    | InstanceEmptied
    | InstanceBroken
    | InstanceGone
    | InstanceWeighed
    | BudgetChanged
    | PrefixMatched
    | IterationDone
    | IterationBegun
    | IterationFailed
    | KvResized
    | ProfileUpdated
    | DeviceIdle
)


class RunIteration(Message):
    """Compute one iteration of one instance; nothing else computes meanwhile.

    Without rows: a dummy iteration of one token, whose only purpose is to pack the weights of a warm instance. Of an
    instance that is filling: begin it.
    """

    instance_id: InstanceId
    rows: tuple[RowPlan, ...]
    predicted_s: float
    because: str


class ResizeKv(Message):
    """Grow or shrink an instance's KV pool. Shrinking never drops a live block.

    The instance computes nothing until `KvResized`; others may.
    """

    instance_id: InstanceId
    kv_blocks: int
    because: str


class BeginLoad(Message):
    """Build and compile in the background; one at a time per node."""

    instance_id: InstanceId
    because: str


class BeginRest(Message):
    """Destroy in the background, and say so (`InstanceEmptied`): `BeginLoad` follows when nobody needs the builder."""

    instance_id: InstanceId
    because: str


class BeginUnload(Message):
    """Destroy."""

    instance_id: InstanceId
    because: str


class AbandonLoad(Message):
    """A load that can never fit: tell the host that it failed."""

    instance_id: InstanceId
    because: str


class RunProfileSample(Message):
    """Run the next sample of an instance's profile once: the device has nothing more urgent.

    A sample takes several runs, and whoever comes waits for one of them at most. Over when the device is idle again;
    the last run of a stage is followed by `ProfileUpdated`.
    """

    instance_id: InstanceId
    because: str


class ReportProfile(Message):
    """Iterations take otherwise than was last told: tell the host, so that both go on planning alike."""

    instance_id: InstanceId
    profile: Profile


class CallOffRest(Message):
    """Somebody came before an instance's rest began: tell the host that it stays resident."""

    instance_id: InstanceId
    because: str


class DropRequest(Message):
    """Free what a request holds; it was cancelled."""

    request_id: RequestId
    because: str


class FailRequest(Message):
    """Its iterations failed again after it was given back once: free what it holds; nobody should try it again."""

    request_id: RequestId
    because: str


class ReturnRequest(Message):
    """Evict: free what a request holds and give it back to the host, to be placed again with its tokens."""

    request_id: RequestId
    because: str
    staged: bool = False


NodeAction = (
    RunIteration
    | ResizeKv
    | BeginLoad
    | BeginRest
    | BeginUnload
    | AbandonLoad
    | RunProfileSample
    | ReportProfile
    | CallOffRest
    | DropRequest
    | FailRequest
    | ReturnRequest
)
