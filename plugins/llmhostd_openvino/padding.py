"""Why does an iteration compute a few tokens that nobody asked for?

The engine makes kernels for every token count that a compiled model has not seen, which costs 5-15 ms the first time
(156M, 2 cores) and again whenever its cache forgets. Mixed batches have a new count nearly every time. So counts are
rounded up to a few; the padding is one more request, whose keys and values go to a block that no table names.
"""

from copy import copy

import numpy as np
import numpy.typing as npt

from llmhostd.engines.interface import Iteration

TOKEN_STEP = 32
"""Larger counts are rounded up to multiples of this, the tokens of one KV block: padding never needs a second one."""
SMALL_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, TOKEN_STEP)
"""Smaller ones are rounded up to the next of these."""


def padded_count(count: int) -> int:
    """Return what `count` tokens, or rows of logits, are rounded up to."""
    if count > TOKEN_STEP:
        return -(-count // TOKEN_STEP) * TOKEN_STEP
    return next((size for size in SMALL_COUNTS if size >= count), 0)


def pad(iteration: Iteration, scratch_block: int) -> Iteration:
    """Round up tokens and sampled rows; results of what was asked for come first in the output."""
    tokens, rows = len(iteration.positions), len(iteration.sampled_indices)
    more, more_rows = padded_count(tokens) - tokens, max(padded_count(rows), 1) - rows
    if not more and not more_rows:
        return iteration
    padded = copy(iteration)
    padded.sampled_indices = np.append(iteration.sampled_indices, np.zeros(more_rows, np.int64))
    if more:
        append_request(padded, more, scratch_block)
    return padded


def append_request(it: Iteration, tokens: int, block: int) -> None:
    """Add a request without a past: `tokens` tokens in one block."""
    it.subsequence_begins = _one_more(it.subsequence_begins, len(it.positions) + tokens)
    it.block_indices_begins = _one_more(it.block_indices_begins, len(it.block_indices) + 1)
    it.block_indices = _one_more(it.block_indices, block)
    it.past_lens = _one_more(it.past_lens, 0)
    it.token_ids = np.append(it.token_ids, np.zeros(tokens, np.int64))
    it.positions = np.append(it.positions, np.arange(tokens, dtype=np.int64))
    if it.adapters is not None:
        it.adapters = _one_more(it.adapters, -1)
    if it.hidden is not None:
        it.hidden = np.pad(it.hidden, ((0, tokens), (0, 0)))


def _one_more(values: npt.NDArray[np.int32], last: int) -> npt.NDArray[np.int32]:
    return np.append(values, np.int32(last))
