"""Which token follows a context? A fixed function of all of it, so that anybody can check an answer.

Each context has a sum over its tokens, in which every token counts by its place. The next token is read off the sum of
all of them: two contexts that differ anywhere almost surely continue differently, so a request that moved with a token
lost, doubled or changed is found out.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from llmhostd.domain.model import Architecture

Sums = npt.NDArray[np.uint64]

_PLACE = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def terms(token_ids: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> Sums:
    """What each token adds at its place (splitmix64 of both). Sums wrap at 2^64."""
    values = token_ids.astype(np.uint64) + (positions.astype(np.uint64) + np.uint64(1)) * _PLACE
    values = (values ^ (values >> np.uint64(30))) * _MIX[0]
    values = (values ^ (values >> np.uint64(27))) * _MIX[1]
    mixed: Sums = values ^ (values >> np.uint64(31))
    return mixed


def next_tokens(sums: Sums, architecture: Architecture) -> npt.NDArray[np.int64]:
    """The token after each context; never one that ends a text, so that answers are as long as asked for."""
    drawn = ((sums >> np.uint64(17)) % np.uint64(architecture.vocab)).astype(np.int64)
    ends = frozenset(architecture.eos_token_ids)
    while (ending := np.isin(drawn, list(ends))).any():
        drawn[ending] = (drawn[ending] + 1) % architecture.vocab
    return drawn


def continuation(prompt: Sequence[int], count: int, architecture: Architecture) -> list[int]:
    """What the engine answers greedily: the slow, obvious twin of an instance, for whoever checks one."""
    context = list(prompt)
    for _ in range(count):
        ids = np.array(context, np.int64)
        total = terms(ids, np.arange(len(ids))).sum(dtype=np.uint64, keepdims=True)
        context.append(int(next_tokens(total, architecture)[0]))
    return context[len(prompt) :]
