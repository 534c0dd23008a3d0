"""When does a KV pool grow or shrink, and to what? Early up, lazily down (SLINFER §VII-B)."""

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class WatermarkPolicy:
    """How much room a pool keeps above its demand."""

    watermark: float = 0.25
    """w: pools grow to demand * (1 + w), and shrink to that only when they exceed demand * (1 + w)^2."""
    shrink_reserve_s: float = 0.5
    """A pool shrinks once everybody who waits on its node has this much headroom, so that KV memory follows the load
    also where somebody always waits (SLINFER §VII-B: as soon as a request ends)."""
    copy_s_per_byte: float = 0.0
    """Growing a pool holds its streams up for so long per byte that it has. 0: pools grow where they are."""
    longest_copy_s: float = 1.7
    """A pool that would take longer to grow than this grows no more while somebody waits for a token of it: whoever can
    best wait leaves instead, and one waits rather than all."""

    def too_large_to_copy(self, kv_bytes: int) -> bool:
        """Whether a pool of so many bytes holds its streams up for too long while it grows."""
        return kv_bytes * self.copy_s_per_byte > self.longest_copy_s


def recommended_blocks(demand: int, policy: WatermarkPolicy) -> int:
    """M_recommend = M_require * (1 + w)."""
    return ceil(demand * (1 + policy.watermark))


def resized_blocks(current: int, demand: int, policy: WatermarkPolicy) -> int:
    """Return the size a pool should have; `current` when it should stay as it is."""
    recommended = recommended_blocks(demand, policy)
    if current < demand or recommended * (1 + policy.watermark) < current:
        return recommended
    return current
