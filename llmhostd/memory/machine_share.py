"""How much of a machine's memory may each of its nodes give to instances, now?

Several nodes live out of one machine, and others use it too. So a node's budget is its share of a sum that moves: what
can be had now, and what the workers hold already, less a reserve for everybody else.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from llmhostd.domain.hardware import MemoryClaim


@dataclass(frozen=True, slots=True)
class MachineMemoryPolicy:
    """How the machine's memory is shared with whatever else runs on it. Followed while the daemon runs."""

    reserve_share: float = 0.1
    """This part of what could be had is left alone..."""
    least_reserve_bytes: int = 1 << 30
    """...and at least this much: the daemon itself, other programs, the file cache."""
    look_every_s: float = 1.0
    """Workers look this often how much there is: control groups' limits move, and so does what others use."""
    considerable_share: float = 0.02
    """A budget that moved by less than this part of itself is left as it was."""


def shareable_bytes(left_bytes: int, held_bytes: int, policy: MachineMemoryPolicy) -> int:
    """What all nodes may hold together, if `left_bytes` can be had now and their workers hold `held_bytes` of it."""
    total = left_bytes + held_bytes
    reserve = max(policy.least_reserve_bytes, int(total * policy.reserve_share))
    return max(0, total - reserve)


def split_memory(total_bytes: int, claims: Sequence[MemoryClaim]) -> tuple[int, ...]:
    """Divide among the claims: numbers first, the rest by weight. Never more in all than there is.

    If even the numbers do not fit, they shrink in proportion and the others get nothing.
    """
    fixed = sum(one.fixed_bytes or 0 for one in claims)
    weights = sum(one.weight for one in claims if one.fixed_bytes is None)
    rest = max(0, total_bytes - fixed)
    return tuple(
        rest * one.weight // weights
        if one.fixed_bytes is None
        else one.fixed_bytes * min(total_bytes, fixed) // max(fixed, 1)
        for one in claims
    )


def considerable(told_bytes: int, now_bytes: int, policy: MachineMemoryPolicy) -> bool:
    """Whether a budget moved so far that somebody should hear of it."""
    return abs(now_bytes - told_bytes) > policy.considerable_share * told_bytes or (now_bytes == 0) != (told_bytes == 0)
