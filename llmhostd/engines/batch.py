"""How do the parts of several requests become one flat batch?"""

from array import array
from collections.abc import Iterable

import numpy as np

from llmhostd.engines.interface import Iteration

Part = tuple["array[int]", "array[int]", int, int, bool]
"""(context token ids, KV block ids for at least the tokens up to the end of this part, tokens computed before, tokens
to compute now, whether logits of the last of them are wanted)."""


def flatten(parts: Iterable[Part], block_tokens: int) -> Iteration:
    """Lay the parts one after another, in plain arrays: it runs before every iteration (32 decodes: some 15 us)."""
    token_ids, positions, sampled = array("q"), array("q"), array("q")
    past_lens, begins = array("i"), array("i", (0,))
    blocks, blocks_begins = array("i"), array("i", (0,))
    for context, table, computed, tokens, sample in parts:
        end = computed + tokens
        if tokens == 1:
            token_ids.append(context[computed])
            positions.append(computed)
        else:
            token_ids += context[computed:end]
            positions.extend(range(computed, end))
        past_lens.append(computed)
        begins.append(len(token_ids))
        needed = -(-end // block_tokens)
        blocks += table if len(table) == needed else table[:needed]
        blocks_begins.append(len(blocks))
        if sample:
            sampled.append(len(token_ids) - 1)
    return Iteration(
        token_ids=np.frombuffer(token_ids, np.int64),
        positions=np.frombuffer(positions, np.int64),
        past_lens=np.frombuffer(past_lens, np.int32),
        subsequence_begins=np.frombuffer(begins, np.int32),
        block_indices=np.frombuffer(blocks, np.int32),
        block_indices_begins=np.frombuffer(blocks_begins, np.int32),
        sampled_indices=np.frombuffer(sampled, np.int64),
    )
