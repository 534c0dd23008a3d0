"""Which loads could be measured to know a model shape on some hardware? (2^x samples, SLINFER §VI-B.)

Which of them are is found out while measuring (`compute.grid_sampler`): first a few near the origin, enough to serve
with after a second or a few; the others when nobody waits.
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
    """The 2^x values of all axes."""

    chunks: tuple[int, ...]
    pasts: tuple[int, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]

    @property
    def points(self) -> tuple[GridPoint, ...]:
        """All points of both grids."""
        return (
            *(PrefillPoint(chunk_tokens=c, past_tokens=p) for c in self.chunks for p in self.pasts),
            *(DecodePoint(batch=b, context_tokens=c) for b in self.batches for c in self.contexts),
        )


def grid_for(shape: ModelShape, policy: GridPolicy | None = None) -> ProfileGrid:
    """Lay the grid for a model shape: nothing longer than its context."""
    policy = policy or GridPolicy()
    longest = shape.architecture.max_context_tokens
    chunks = _doubling(policy.least_chunk_tokens, min(policy.most_chunk_tokens, longest))
    past_end = min(policy.most_past_tokens, longest - chunks[-1])
    return ProfileGrid(
        chunks=tuple(chunks),
        pasts=(0, *_doubling(256, past_end)) if past_end > 0 else (0,),
        batches=tuple(_doubling(1, policy.most_batch)),
        contexts=tuple(_doubling(policy.least_context_tokens, min(policy.most_past_tokens, longest))),
    )


def _doubling(least: int, most: int) -> list[int]:
    """`least`, twice that, and so on, and `most`; just `most` where it is smaller."""
    axis = []
    while least < most:
        axis.append(least)
        least *= 2
    return [*axis, most]
