"""What does a node tell its host? Each is a frame on the wire and an event of `host`."""

from llmhostd.domain.ids import InstanceId, ModelName, NodeId, RequestId
from llmhostd.domain.model import ModelState
from llmhostd.domain.profile import Profile
from llmhostd.domain.request import FinishReason
from llmhostd.domain.words import Message, Word


class TokenLogprobs(Word):
    """Log-probabilities at one output position."""

    chosen: float
    top: tuple[tuple[int, float], ...]
    """(token id, log-probability), likeliest first."""


class RowReport(Word):
    """What one iteration did for one request."""

    request_id: RequestId
    prefilled: int = 0
    """Context tokens whose KV this iteration computed (cached prefix tokens counted once, with the first chunk)."""
    cached: int = 0
    """Of `prefilled`: found in the prefix cache instead of computed; told once, with the first chunk."""
    tokens: tuple[int, ...] = ()
    """New output token ids."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One per token, when asked for."""
    finish: FinishReason | None = None
    failed: str = ""
    """Why it got no token although the others did: nothing was done for it."""


class IterationReported(Message):
    """One iteration ran. One frame per iteration, not per token."""

    node_id: NodeId
    instance_id: InstanceId
    started_s: float
    duration_s: float
    predicted_s: float
    rows: tuple[RowReport, ...]
    because: str
    """Why this instance and this chunk were chosen."""
    settled: bool = True
    """Whether it took as long as others like it will: no weights were packed beside it."""


class LoadStages(Word):
    """Where the time of one load went. Stages overlap: together they may be more than the load took."""

    read_s: float = 0.0
    """Weights were being read and checked."""
    build_s: float = 0.0
    """Graphs were being built, waits for what was still being read left out."""
    compile_s: float = 0.0
    """Graphs were being compiled."""
    read_bytes: int = 0
    """Weights brought into memory..."""
    disk_bytes: int = 0
    """...how much of that came from a disk..."""
    remote_bytes: int = 0
    """...and how much over a network; the rest lay in the system's page cache."""


class InstanceReported(Message):
    """An instance changed its state or its size."""

    node_id: NodeId
    instance_id: InstanceId
    state: ModelState
    held_bytes: int
    """Beside KV."""
    kv_bytes: int
    kv_used_bytes: int
    took_s: float = 0.0
    because: str = ""
    block_tokens: int = 0
    """Tokens per KV block, as its engine has it; 0: not known, nothing is loaded."""
    stages: LoadStages | None = None
    """With the report that a load ended, whose `took_s` is all of it; None: another report."""
    first_run_s: float = 0.0
    """With the report that it became resident: what its first iteration took, which packs the weights."""


class LoadFailed(Message):
    """A load ended without an instance; the node goes on."""

    node_id: NodeId
    instance_id: InstanceId
    error: str
    """For a person: names the file, the tensor and what to do."""
    lacks_memory: bool = False
    """Nothing is wrong with the model: there was no memory for it."""


class WeightsFetched(Message):
    """Weights of an instance that is to be loaded come over a network."""

    node_id: NodeId
    instance_id: InstanceId
    here_bytes: int
    total_bytes: int
    bytes_per_s: float
    """Since they began to come."""
    near: bool
    """It is its turn to be built as soon as nothing else is; the rest comes meanwhile, or nothing more does."""

    @property
    def all_here(self) -> bool:
        """Whether nothing is to come any more."""
        return self.here_bytes >= self.total_bytes


class ProfileProgressed(Message):
    """A measurement is under way."""

    node_id: NodeId
    instance_id: InstanceId
    done: int
    total: int


class ProfileMeasured(Message):
    """A measurement ended, or was corrected by what iterations really took."""

    node_id: NodeId
    instance_id: InstanceId
    profile: Profile


class RestCalledOff(Message):
    """An instance that was told to rest stays resident: a request came before the rest began, whatever becomes of it.

    Said before anything that the request leads to, so that it is never about a later order.
    """

    node_id: NodeId
    instance_id: InstanceId
    because: str


class RequestReturned(Message):
    """The node gives a request back, to be placed again with its tokens."""

    node_id: NodeId
    request_id: RequestId
    because: str
    staged: bool = False
    """It was only staged: its stream is elsewhere."""


class RequestFailed(Message):
    """The node cannot run a request, and nobody else on this box should try."""

    node_id: NodeId
    request_id: RequestId
    error: str


class NodeUp(Message):
    """A worker is ready for commands; it holds nothing."""

    node_id: NodeId
    memory_bytes: int
    caveats: tuple[str, ...] = ()
    """What is slow or off there (`EngineFacts.caveats`)."""


class NodeMemoryChanged(Message):
    """What instances on a node may hold together is now this: a cgroup limit moved, or others use more or less."""

    node_id: NodeId
    memory_bytes: int
    because: str


class WeightsKept(Message):
    """A model's weights are kept in host memory now, or could not be."""

    node_id: NodeId
    model: ModelName
    kept_bytes: int
    """0: they could not be."""
    because: str = ""
    """Why they could not be."""


class NodeMemoryReported(Message):
    """What the instances on a node hold together. Bytes; sent when they changed, a few times a second at most."""

    node_id: NodeId
    budget_bytes: int
    """What they may hold."""
    promised_bytes: int
    """What they will hold once everything that was decided is done (SLINFER §VII-C)."""
    held_bytes: int
    """What they may hold at this moment."""
    used_bytes: int
    """Of it: weights, and KV blocks that requests own."""
    scaling_s: float
    """Seconds spent in resizing KV pools since the worker began."""


class NodeDown(Message):
    """A worker died, and everything on it."""

    node_id: NodeId
    suspect: InstanceId | None
    """The instance that was loading or computing, if one was."""
    because: str
    bus_error: bool = False
    """It touched a page of a mapped file that was gone."""
    file_changed: bool = False
    """The suspect's, as `because` says: to load it again would not mend that."""


NodeReport = (
    IterationReported
    | InstanceReported
    | LoadFailed
    | WeightsFetched
    | ProfileProgressed
    | ProfileMeasured
    | RestCalledOff
    | RequestReturned
    | RequestFailed
    | NodeUp
    | NodeMemoryChanged
    | NodeMemoryReported
    | WeightsKept
)
