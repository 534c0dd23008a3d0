"""What is the box doing this second? The admin API answers with these, the TUI and `ps` draw them."""

from llmhostd.domain.hardware import NodeKind
from llmhostd.domain.ids import InstanceId, ModelName, NodeId, RequestId
from llmhostd.domain.model import ModelState, Slo
from llmhostd.domain.request import Tier
from llmhostd.domain.words import Word


class HostSnapshot(Word):
    """`GET /api/v1/host`: the daemon itself. Counts are since it started; a client takes differences for rates."""

    version: str
    uptime_s: float
    draining: bool
    requests: int
    """Arrived."""
    refused: int
    """Told at once that they cannot be served."""
    failed: int
    finished: int
    slo_met: int
    """Of the finished latency-sensitive ones: first token within TTFT (and grace), mean token within TPOT."""
    slo_missed: int
    tokens_out: int
    left_out: tuple[str, ...] = ()
    """Devices of this box that could compute and do not, and why."""
    last_run: str = ""
    """How the last run of the daemon ended, if not in good order, and whom that cut off."""
    returned: str = ""
    """What of it goes on in this one."""
    not_stored: tuple[str, ...] = ()
    """What should be on the disk and is not, and why."""


class ModelSnapshot(Word):
    """One row of `GET /api/v1/models`."""

    name: ModelName
    family: str
    parameters: int
    weights: str
    compute: str
    kv: str
    weight_bytes: int
    max_context_tokens: int
    slo: Slo
    state: ModelState
    """The nearest to its first token of all instances."""
    profiled: bool
    because: str = ""
    """Why it is quarantined or cannot be loaded."""
    measured: int = 0
    """Measurements of its profile that ended on any node since the daemon started."""
    base: str = ""
    """Of an adapter: the model whose weights it shares; `parameters` and `weight_bytes` are then its own."""
    estimated_start_s: float | None = None
    """How long it would take from now until it can answer at its usual pace, where that is soonest; None: nowhere."""
    last_start_s: float | None = None
    """What its last start took; None: nobody saw one."""
    memory_bytes: int | None = None
    """Of its weights' files, what lies in host memory; None: nobody can tell."""
    remote_bytes: int = 0
    """Of them, what has still to come over a network."""


class NodeSnapshot(Word):
    """One row of `GET /api/v1/nodes`."""

    id: NodeId
    kind: NodeKind
    engine: str
    hardware: str
    cores: tuple[int, ...]
    up: bool
    memory_bytes: int
    weights_bytes: int
    """Held by instances beside KV."""
    kv_bytes: int
    kv_used_bytes: int
    free_bytes: int
    busy: float
    """Share of the last second that the device computed, 0-1."""
    iterations_per_s: float
    tokens_per_s: float
    restarts: int
    profiling: str = ""
    """`wren-160m 34/96` while a profile is measured."""
    caveats: tuple[str, ...] = ()
    """What is slow or off on this node, and why (`EngineFacts.caveats`, as its `NodeUp` brought them)."""
    draining: bool = False
    """Nothing new goes there; what runs moves elsewhere or ends."""
    budget_bytes: int = 0
    """What its instances may hold together now, as the node itself says; so are the next four."""
    promised_bytes: int = 0
    """What they will hold once everything that was decided is done (SLINFER §VII-C)."""
    held_bytes: int = 0
    """What they may hold at this moment."""
    used_bytes: int = 0
    """Of it: weights, and KV blocks that requests own."""
    scaling_s: float = 0.0
    """Seconds spent in resizing KV pools since its worker began."""
    kept_bytes: int = 0
    """Of what is free: weights that are kept in host memory while nobody runs them, until anybody needs it."""
    start_error: float | None = None
    """Median error of the estimates of the last ten starts, as a part of the truth; None: there was none yet."""
    memory_bytes_per_s: float = 0.0
    """How fast weights come from host memory, going by the latest loads."""
    disk_bytes_per_s: float = 0.0
    """The same from the disk."""
    remote_bytes_per_s: float = 0.0
    """The same over a network."""


class InstanceSnapshot(Word):
    """One row of `GET /api/v1/instances`."""

    id: InstanceId
    model: ModelName
    node_id: NodeId
    state: ModelState
    held_bytes: int
    kv_bytes: int
    kv_used_bytes: int
    running: int
    """Requests on it now."""
    idle_s: float
    """Seconds since it last computed."""
    estimated_start_s: float | None = None
    """What was foretold of its start when it was ordered: queue, load and, if somebody waited, its first iteration."""
    start_s: float | None = None
    """The truth; None: it is not over."""
    fetched_bytes: int | None = None
    """While its weights come over a network: how many are here..."""
    fetch_bytes: int | None = None
    """...of how many..."""
    fetch_bytes_per_s: float | None = None
    """...and how fast they have come so far."""


class RequestSnapshot(Word):
    """One row of `GET /api/v1/requests`: live ones only, least headroom first."""

    id: RequestId
    model: ModelName
    tier: Tier
    instance_id: InstanceId | None
    phase: str
    """`queued`, `loading`, `prefill` or `decode`."""
    prompt_tokens: int
    tokens_out: int
    max_tokens: int
    age_s: float
    headroom_s: float
    """How long its next token can wait (SLINFER eq. 1); negative: late."""
    moves: int
    """How often it was re-submitted with its tokens."""
    moving_to: InstanceId | None = None
    """Where its context is being computed ahead, so that it goes on there without a gap."""
    follows_to: NodeId | None = None
    """Where an operator wants it, and it goes as soon as those before it have arrived."""


class UsageRow(Word):
    """One row of `GET /api/v1/usage`: counts of one model."""

    model: ModelName
    day: str
    """UTC, as `2026-01-31`; empty: all days that were asked for."""
    requests: int
    refused: int
    failed: int
    prompt_tokens: int
    cached_tokens: int
    """Of `prompt_tokens`: not computed, because an earlier request had the same prefix."""
    output_tokens: int


class Decision(Word):
    """One server-sent event of `GET /api/v1/events`: what was decided, of what, and why."""

    sequence: int
    at_unix_s: float
    kind: str
    """The action's name, e.g. `SubmitRequest`; `IterationReported` for samples of what a node ran."""
    subject: str
    """The request, model or instance it is about."""
    node_id: NodeId | None
    because: str
