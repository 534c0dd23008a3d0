"""Which loads must be measured to know a model shape on some hardware? (2^x samples, SLINFER §VI-B.)

Two stages. The coarse one takes a second or a few and is enough to serve with; the fine one is measured when nobody
waits. The samples of the coarse stage, and of both together, are full grids.
"""

from dataclasses import dataclass

from llmhostd.domain.model import ModelShape
from llmhostd.domain.words import Word


@dataclass(frozen=True, slots=True)
class GridPolicy:
    """How far and how finely to measure. Tokens."""

    least_chunk_tokens: int = 8
    most_chunk_tokens: int = 512
    """The largest chunk of one iteration (`ChunkPolicy.max_chunk_tokens`); longer ones are extrapolated."""
    most_past_tokens: int = 4096
    """Longer pasts and contexts are extrapolated: attention is linear in them."""
    least_context_tokens: int = 64
    most_batch: int = 32
    coarse_stride: int = 3
    """The coarse stage takes every so many of the fine stage's points along each axis, and both ends."""


class PrefillPoint(Word):
    """Time one chunk after a past."""

    chunk_tokens: int
    past_tokens: int


class DecodePoint(Word):
    """Time one token of each of a batch, all with this context."""

    batch: int
    context_tokens: int


GridPoint = PrefillPoint | DecodePoint


class ProfileGrid(Word):
    """What to measure, in this order."""

    coarse: tuple[GridPoint, ...]
    fine: tuple[GridPoint, ...]
    """Without those of `coarse`."""


def grid_for(shape: ModelShape, policy: GridPolicy | None = None) -> ProfileGrid:
    """Lay the grid for a model shape: nothing longer than its context, the cheapest points first."""
    policy = policy or GridPolicy()
    longest = shape.architecture.max_context_tokens
    chunks = _doubling(policy.least_chunk_tokens, min(policy.most_chunk_tokens, longest))
    past_end = min(policy.most_past_tokens, longest - chunks[-1])
    pasts = [0, *_doubling(256, past_end)] if past_end > 0 else [0]
    batches = _doubling(1, policy.most_batch)
    contexts = _doubling(policy.least_context_tokens, min(policy.most_past_tokens, longest))
    stride = policy.coarse_stride
    coarse: list[GridPoint] = [
        *(
            PrefillPoint(chunk_tokens=c, past_tokens=p)
            for c in _thinned(chunks, stride)
            for p in _thinned(pasts, len(pasts))
        ),
        *(
            DecodePoint(batch=b, context_tokens=c)
            for b in _thinned(batches, stride)
            for c in _thinned(contexts, len(contexts))
        ),
    ]
    every: list[GridPoint] = [
        *(PrefillPoint(chunk_tokens=c, past_tokens=p) for c in chunks for p in pasts),
        *(DecodePoint(batch=b, context_tokens=c) for b in batches for c in contexts),
    ]
    return ProfileGrid(coarse=tuple(coarse), fine=tuple(point for point in every if point not in coarse))


def _doubling(least: int, most: int) -> list[int]:
    """`least`, twice that, and so on, and `most`; just `most` where it is smaller."""
    axis = []
    while least < most:
        axis.append(least)
        least *= 2
    return [*axis, most]


def _thinned(axis: list[int], stride: int) -> list[int]:
    """Every `stride`-th, and the last."""
    return sorted({*axis[::stride], axis[-1]})
