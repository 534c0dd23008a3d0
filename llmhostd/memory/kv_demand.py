"""How much KV cache will an instance's requests need? (SLINFER §VII-A, eq. 2.)

M_require = C * max(sum of (I_r + max(O_r, mean O)), L_min): a request is expected to say at least as much as requests
said on average. Never more than it may say.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from llmhostd.domain.request import RequestShape


class GrowingRequest(Protocol):
    """What eq. 2 asks of a request; `compute.workload.RequestLoad` is one."""

    @property
    def shape(self) -> RequestShape:
        """Its prompt, and how much it may say."""
        ...

    @property
    def tokens_out(self) -> int:
        """How much it has said."""
        ...


@dataclass(frozen=True, slots=True)
class KvDemandPolicy:
    """What to expect of requests whose output length nobody knows. Tokens."""

    least_tokens: int = 512
    """L_min: room that every running instance has; 0: none. Small, because growing costs under a millisecond here; the
    paper, whose pools are copied to grow, takes the whole context length (4096)."""
    first_mean_output_tokens: int = 64
    """The mean output length before any request has finished."""
    remembered_outputs: int = 64
    """The mean follows about this many of the last outputs."""


class OutputLengths:
    """The running mean of output lengths, in tokens."""

    __slots__ = ("_policy", "mean_tokens")

    def __init__(self, policy: KvDemandPolicy) -> None:
        self._policy = policy
        self.mean_tokens = float(policy.first_mean_output_tokens)

    def observe(self, tokens_out: int) -> None:
        """Take in the length of a finished output."""
        self.mean_tokens += (tokens_out - self.mean_tokens) / self._policy.remembered_outputs


def expected_tokens(request: GrowingRequest, mean_output_tokens: float) -> int:
    """Context of one request at its expected end: I_r + max(O_r, mean O), within what it may say."""
    output = max(request.tokens_out, min(round(mean_output_tokens), request.shape.max_tokens))
    return request.shape.prompt_tokens + output


def demand_bytes(
    requests: Iterable[GrowingRequest],
    kv_bytes_per_token: int,
    policy: KvDemandPolicy,
    mean_output_tokens: float | None = None,
) -> int:
    """Return M_require. Without a mean: the policy's first one."""
    mean = policy.first_mean_output_tokens if mean_output_tokens is None else mean_output_tokens
    likely, tokens = round(mean), 0
    for request in requests:  # `expected_tokens`, inlined: this is asked for every row of every iteration
        shape, said = request.shape, request.tokens_out
        output = min(shape.max_tokens, likely)
        tokens += shape.prompt_tokens + max(output, said)
    return kv_bytes_per_token * max(tokens, policy.least_tokens)


def demand_blocks(
    requests: Iterable[GrowingRequest],
    block_tokens: int,
    policy: KvDemandPolicy,
    mean_output_tokens: float,
    *,
    shared_blocks: int = 0,
) -> int:
    """Return M_require in KV blocks; every request's last block counts whole.

    `shared_blocks`: what the requests' tables name beyond once, because they begin alike.
    """
    blocks = sum(-(-expected_tokens(request, mean_output_tokens) // block_tokens) for request in requests)
    return max(blocks - shared_blocks, -(-policy.least_tokens // block_tokens))
