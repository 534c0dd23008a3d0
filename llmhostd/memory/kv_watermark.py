"""When does a KV pool grow or shrink, and to what? Early up, lazily down (SLINFER §VII-B)."""

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class WatermarkPolicy:
    """How much room a pool keeps above its demand."""

    watermark: float = 0.25
    """w: pools grow to demand * (1 + w), and shrink to that only when they exceed demand * (1 + w)^2."""


def recommended_blocks(demand: int, policy: WatermarkPolicy) -> int:
    """M_recommend = M_require * (1 + w)."""
    return ceil(demand * (1 + policy.watermark))


def resized_blocks(current: int, demand: int, policy: WatermarkPolicy) -> int:
    """Return the size a pool should have; `current` when it should stay as it is."""
    recommended = recommended_blocks(demand, policy)
    if current < demand or recommended * (1 + policy.watermark) < current:
        return recommended
    return current
