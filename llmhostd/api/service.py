"""What does the HTTP API need of the daemon? It knows this port and nothing behind it."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from llmhostd.domain.actions import Refusal
from llmhostd.domain.errors import LlmhostdError
from llmhostd.domain.ids import ModelName, NodeId, RequestId
from llmhostd.domain.profile import Profile
from llmhostd.domain.request import FinishReason, Sampling, Tier
from llmhostd.domain.snapshot import (
    Decision,
    HostSnapshot,
    InstanceSnapshot,
    ModelSnapshot,
    NodeSnapshot,
    RequestSnapshot,
    UsageRow,
)
from llmhostd.domain.words import Word


class RefusedError(LlmhostdError):
    """The caller did nothing wrong and is not served."""

    def __init__(
        self, refusal: Refusal, message: str, *, retry_after_s: float = 0.0, expected_ttft_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.refusal = refusal
        self.retry_after_s = retry_after_s
        self.expected_ttft_s = expected_ttft_s


class Conversation(Word):
    """A prompt for a chat template."""

    messages: tuple[dict[str, Any], ...]
    variables: dict[str, Any]
    """The caller's own for the template."""


Prompt = Conversation | str | tuple[int, ...]
"""A conversation to be rendered, a text to be encoded, or token ids as they are."""


class Ask(Word):
    """One call for completions of one or several prompts, with `n` choices each."""

    model: ModelName
    prompts: tuple[Prompt, ...]
    n: int
    max_tokens: int | None
    """None: as many as the context holds."""
    sampling: Sampling
    """Its `max_tokens` and `stop_token_ids` are the daemon's to fill in."""
    seeded: bool
    """Whether the caller chose the seed; else each choice gets a random one."""
    stop: tuple[str, ...]
    tier: Tier


class Endpoint(StrEnum):
    """Which of OpenAI's calls."""

    CHAT = "chat.completions"
    TEXT = "completions"


class CallRecord(Word):
    """What a call is known by, and asked again by, beyond the life of its connection."""

    id: str
    """Of the completion: its answer and every chunk of it have it."""
    caller_id: str
    """The caller's own name for it (`X-Request-Id`); empty: none."""
    endpoint: Endpoint
    body: bytes
    """As it was sent."""


class KeptCall(Word):
    """`GET /api/v1/requests/{id}`: a best-effort call that is not answered yet, or whose answer waits."""

    id: str
    caller_id: str
    endpoint: Endpoint
    model: ModelName
    arrived_unix_s: float
    tokens_out: int
    """Of all its choices, as last written."""
    done: bool
    status: int | None
    """HTTP status that the answer has; null: not done."""
    answer: Any
    """Body of the answer, or of the error; null: not done."""


class Stays(Word):
    """A request that an operator wanted elsewhere, and why it stays where it is."""

    id: RequestId
    because: str


class Moving(Word):
    """What becomes of what was asked to move; `/api/v1/requests` says when it has arrived."""

    goes: list[RequestId]
    """These move from now on, or follow when those before them have arrived."""
    stays: list[Stays]


class ShownToken(Word):
    """A token and its log-probability as callers see them."""

    token: bytes
    logprob: float


class ShownLogprobs(Word):
    """One output position: the token drawn, and the likeliest."""

    chosen: ShownToken
    top: tuple[ShownToken, ...]


class Piece:
    """What one or several tokens add to one choice. Not a struct of the wire: made per token, so kept light."""

    __slots__ = ("choice", "finish", "logprobs", "text")

    def __init__(
        self, choice: int, text: str, finish: FinishReason | None = None, logprobs: Sequence[ShownLogprobs] = ()
    ) -> None:
        self.choice = choice
        self.text = text
        self.finish = finish
        self.logprobs = logprobs


class TokenUsage(Word):
    """What a call cost so far, over all its choices. Prompts count once, however many choices they have."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class Completion(Protocol):
    """A call under way."""

    choices: int
    """Prompts times n; pieces carry 0 <= choice < choices."""

    async def pieces(self) -> list[Piece]:
        """Wait for what comes next: at least one piece; none at all once every choice ended or it was cancelled.

        May be abandoned and called again: no piece is lost. Raises RefusedError or another LlmhostdError.
        """
        ...

    def usage(self) -> TokenUsage:
        """Count so far."""
        ...

    def cancel(self) -> None:
        """Free what it holds, once its answer has left or nobody waits for it any more."""
        ...


class Subscription(Protocol):
    """A reader of decisions."""

    def event_id(self, decision: Decision) -> str:
        """Name a decision for whoever wants to go on behind it, in this run of the daemon or the next."""
        ...

    async def decisions(self) -> list[Decision]:
        """Wait for what comes next, the recent ones first; none once closed. A slow reader misses the oldest."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class ModelRegistration(Word, forbid_unknown_fields=True):
    """Body of `POST /api/v1/models`."""

    name: str
    path: str
    """Directory of the checkpoint on the daemon's machine."""
    compute: str = ""
    """`auto`, `bf16` or `f32`; empty: as configured."""
    kv: str = ""
    """`u8`, `bf16` or `f32`; empty: as configured."""
    ttft_s: float | None = None
    tpot_s: float | None = None
    source: str = "local"
    base: str = ""
    """Of a LoRA adapter: the model that it was made for; empty: whichever its configuration names."""


class Service(Protocol):
    """The daemon, as the API sees it."""

    async def complete(self, ask: Ask, record: CallRecord) -> Completion:
        """Tokenize and submit. Raises CallerError, UnknownModelError, RefusedError at once where it can.

        A best-effort call is on disk when this returns. If the daemon ends before its answer has left, it goes on when
        the daemon starts again, and its answer is kept.
        """
        ...

    def ready(self) -> str:
        """Return why it is not ready to serve; empty when it is."""
        ...

    def host(self) -> HostSnapshot: ...

    def models(self) -> list[ModelSnapshot]: ...

    def nodes(self) -> list[NodeSnapshot]: ...

    def instances(self) -> list[InstanceSnapshot]: ...

    def requests(self) -> list[RequestSnapshot]: ...

    def profiles(self) -> list[Profile]: ...

    def added(self, name: ModelName) -> tuple[int, ModelName | None]:
        """When a model was added (Unix seconds), and of an adapter its base. Raises UnknownModelError."""
        ...

    def directory(self, name: ModelName) -> Path:
        """Where a model's files lie; of an adapter its own. Raises UnknownModelError."""
        ...

    async def register(self, registration: ModelRegistration) -> ModelSnapshot:
        """Add or replace a model. Raises CallerError, CheckpointError, OperatorError, RefusedError."""
        ...

    async def remove(self, name: ModelName) -> None:
        """Forget a model; what runs, runs to its end. Raises UnknownModelError, CallerError for one with adapters."""
        ...

    def load(self, name: ModelName) -> None:
        """Ask for a model before anybody calls it. Raises UnknownModelError."""
        ...

    def unload(self, name: ModelName) -> None:
        """Ask for its instances to go once they are idle. Raises UnknownModelError, CallerError for an adapter."""
        ...

    async def release(self, name: ModelName) -> None:
        """Let a quarantined model try again, in later runs, too. Raises UnknownModelError."""
        ...

    async def kept(self, call_id: str) -> KeptCall:
        """Find a best-effort call by its own or its caller's id. Raises UnknownNameError."""
        ...

    async def forget(self, call_id: str) -> None:
        """Cancel it if it is not done, and drop its answer. Raises UnknownNameError."""
        ...

    def measure(self, name: ModelName) -> None:
        """Measure its profile again in the gaps of serving. Raises UnknownModelError."""
        ...

    async def drain(self, node_id: NodeId) -> None:
        """Let a node run empty, until that is ended. Raises UnknownNameError with the nearest."""
        ...

    async def end_drain(self, node_id: NodeId) -> None:
        """Use a drained node again. Raises UnknownNameError with the nearest."""
        ...

    def move(self, request_id: RequestId, node_id: NodeId) -> Moving:
        """Let a live request go on on another node. Raises UnknownNameError with the nearest."""
        ...

    def move_model(self, name: ModelName, node_id: NodeId) -> Moving:
        """Let all live requests of a model go on on one node. Raises UnknownModelError, or UnknownNameError."""
        ...

    async def usage(self, *, per_day: bool, since: str) -> list[UsageRow]:
        """Count what was used from the day `since` (UTC; empty: ever), by day if wanted, then by model.

        Raises CallerError for a day that the calendar does not have.
        """
        ...

    def subscribe(self, after: str) -> Subscription:
        """Follow the decisions behind an event of this run, else all that are kept. RefusedError when too many do."""
        ...
