"""How much of a prompt fits into this iteration without making anybody late? (OmniServe §3.3.4.)"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChunkPolicy:
    """How prompts are cut. Tokens."""

    min_chunk_tokens: int = 64
    """A prefill that is the most urgent work of its instance computes at least this much per iteration."""
    max_chunk_tokens: int = 512
    """All chunks of one iteration together: nobody who arrives meanwhile waits longer than this takes."""
    align_tokens: int = 0
    """Chunks that do not finish a prompt end at a multiple of this; 0: of the engine's KV block."""


def largest_chunk(
    seconds_of: Callable[[int], float],
    within_s: float,
    *,
    pending: int,
    past: int,
    budget: int,
    policy: ChunkPolicy,
    block_tokens: int,
) -> int:
    """Return the largest chunk whose iteration takes at most `within_s`; 0 when not even the least one does.

    `seconds_of(chunk)` never falls, so that the limit lies between a chunk that fits and one that does not. It is
    looked for where a straight line between the two crosses `within_s`: each look costs a prediction. A chunk ends at
    the end of the prompt or, where that does not fit, at a block's end. `past` tokens are computed already, `pending`
    are not.
    """
    if pending <= budget and seconds_of(pending) <= within_s:
        return pending
    least = least_chunk(pending=pending, past=past, policy=policy, block_tokens=block_tokens)
    if least > budget or (low_s := seconds_of(least)) > within_s:
        return 0
    align = policy.align_tokens or block_tokens
    low, high = (past + least) // align, (past + min(pending, budget)) // align
    if low >= high:
        return low * align - past
    if (high_s := seconds_of(high * align - past)) <= within_s:
        return high * align - past
    while high - low > 1:
        step = int((within_s - low_s) / (high_s - low_s) * (high - low))
        middle = low + min(max(step, 1), high - low - 1)
        middle_s = seconds_of(middle * align - past)
        if middle_s <= within_s:
            low, low_s = middle, middle_s
        else:
            high, high_s = middle, middle_s
    return low * align - past


def least_chunk(*, pending: int, past: int, policy: ChunkPolicy, block_tokens: int) -> int:
    """Return the smallest chunk worth an iteration: `min_chunk_tokens`, to a block's end, or what is left."""
    end = past + policy.min_chunk_tokens
    end += -end % (policy.align_tokens or block_tokens)
    return min(pending, end - past)
