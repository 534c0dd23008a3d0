"""Why does an iteration compute a few tokens that nobody asked for?

The engine makes kernels for every token count that a compiled model has not seen, which costs 5-15 ms the first time
(156M, 2 cores) and again whenever its cache forgets. Mixed batches have a new count nearly every time. So counts are
rounded up to a few; the padding is one more request, whose keys and values go to a block that no table names.
"""

import numpy as np
import numpy.typing as npt

from llmhostd.engines.interface import Iteration

TOKEN_STEP = 32
"""Larger counts are rounded up to multiples of this, the tokens of one KV block: padding never needs a second one."""
_SMALL = (1, 2, 3, 4, 6, 8, 12, 16, 24, TOKEN_STEP)


def padded_count(count: int) -> int:
    """Return what `count` tokens, or rows of logits, are rounded up to."""
    if count > TOKEN_STEP:
        return -(-count // TOKEN_STEP) * TOKEN_STEP
    return next((size for size in _SMALL if size >= count), 0)


def pad(iteration: Iteration, scratch_block: int) -> Iteration:
    """Round up tokens and sampled rows; results of what was asked for come first in the output."""
    tokens, rows = len(iteration.positions), len(iteration.sampled_indices)
    more, more_rows = padded_count(tokens) - tokens, max(padded_count(rows), 1) - rows
    if not more and not more_rows:
        return iteration
    it = iteration
    sampled = np.append(it.sampled_indices, np.zeros(more_rows, np.int64))
    if not more:
        return Iteration(
            token_ids=it.token_ids, positions=it.positions, past_lens=it.past_lens,
            subsequence_begins=it.subsequence_begins, block_indices=it.block_indices,
            block_indices_begins=it.block_indices_begins, sampled_indices=sampled, hidden=it.hidden,
        )  # fmt: skip
    return Iteration(
        token_ids=np.append(it.token_ids, np.zeros(more, np.int64)),
        positions=np.append(it.positions, np.arange(more, dtype=np.int64)),
        past_lens=_one_more(it.past_lens, 0),
        subsequence_begins=_one_more(it.subsequence_begins, tokens + more),
        block_indices=_one_more(it.block_indices, scratch_block),
        block_indices_begins=_one_more(it.block_indices_begins, len(it.block_indices) + 1),
        sampled_indices=sampled,
        hidden=None if it.hidden is None else np.pad(it.hidden, ((0, more), (0, 0))),
    )


def _one_more(values: npt.NDArray[np.int32], last: int) -> npt.NDArray[np.int32]:
    return np.append(values, np.int32(last))
