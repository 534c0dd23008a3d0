"""How many tokens do the samples of a profile hold at once?"""

from functools import lru_cache

from llmhostd.compute.profile_grid import PrefillPoint, grid_for
from llmhostd.domain.model import ModelShape


@lru_cache(maxsize=64)
def most_sample_tokens(shape: ModelShape) -> int:
    """Return the contexts of all requests of the largest sample together."""
    grid = grid_for(shape)
    return max(
        point.past_tokens + point.chunk_tokens
        if isinstance(point, PrefillPoint)
        else point.batch * point.context_tokens
        for point in grid.points
    )
