"""What does a caller want, and by when?"""

from enum import StrEnum

import msgspec

from llmhostd.domain.ids import ModelName, RequestId
from llmhostd.domain.model import Slo
from llmhostd.domain.words import Word


class Tier(StrEnum):
    """Does somebody wait for it (OmniServe §3.3.2)?"""

    LATENCY_SENSITIVE = "default"
    BEST_EFFORT = "flex"


class FinishReason(StrEnum):
    """Why a request ended, in the API's words."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


class RequestShape(Word):
    """All that a mind knows of a request: lengths and promises, no tokens. Times in seconds on the monotonic clock."""

    id: RequestId
    model: ModelName
    prompt_tokens: int
    max_tokens: int
    """Output tokens at most, counted from the first token ever streamed (not from a re-submission)."""
    tier: Tier
    slo: Slo
    """Best-effort requests carry one too; it only orders them among themselves."""
    arrived_s: float
    tokens_out: int = 0
    """Output tokens already streamed: > 0 when the request moved here as its tokens."""
    grace_s: float = 0.0
    """Added to TTFT when the request had to wait for a cold start (SLINFER §IX-A)."""
    first_token_s: float | None = None
    """When its first token came, if it moved here after that: its TPOT is counted from then on."""
    last_token_s: float | None = None
    """When its last token came, if it moved here after that: the longest gap within a stream is counted from then."""
    adapter: str = ""
    """Identity of the adapter that it is computed with; empty: the base as it is."""
    accepted_before: bool = False
    """An earlier run of the daemon accepted it, when there may have been more memory: it waits until there is again."""
    given_tokens: int = 0
    """Context tokens whose keys and values come along from where they were computed (SLINFER §IX-G). Only simulated
    requests bring any."""

    @property
    def context_tokens(self) -> int:
        """Tokens whose keys and values must exist before the next output token."""
        return self.prompt_tokens + self.tokens_out

    def excused_until(self, at_s: float) -> "RequestShape":
        """Return it with a grace that is all of its wait until then, if it was given any."""
        return msgspec.structs.replace(self, grace_s=at_s - self.arrived_s) if self.grace_s else self


class Sampling(Word):
    """How the next token is drawn. Defaults are OpenAI's."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    min_p: float = 0.0
    seed: int = 0
    """Output token n is drawn from counter n of this seed, so a request that moves draws the same."""
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    """None: none. n: the chosen token's log-probability and the n likeliest."""
