"""When do two slots change places, so that adapters that are used together lie side by side?

An iteration reads all slots from the first to the last that it uses. What lies between and is not used costs every
iteration, changing places costs once. Which adapters will be asked for together nobody knows; so two slots change
places whenever iterations have read as much in vain as that costs: swaps never take longer than what they are meant to
spare did, and where the same adapters go on together, they soon lie side by side.
"""

from collections.abc import Collection

SWAP_READS = 2
"""What a swap costs, in slots that iterations read in vain: 2.1 ms, where one of those takes 1.8 (1.1B, all layers)."""


class SlotSwaps:
    """What iterations of one instance read in vain so far."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._in_vain = 0

    def due(self, used: Collection[int], needed: int) -> tuple[int, int] | None:
        """Take note of an iteration that uses these places. Returns two places to exchange before, if it pays.

        `needed`: how many slots it would read if what it uses lay side by side.
        """
        in_vain = max(used, default=0) - min(used, default=0) + 1 - needed
        if in_vain <= 0 or not used:
            return None
        self._in_vain += in_vain
        if self._in_vain < SWAP_READS:
            return None
        self._in_vain -= SWAP_READS
        return _swap(used, self._slots)


def _swap(used: Collection[int], slots: int) -> tuple[int, int]:
    """Choose a place in use and one that is not: among as many places as are used, side by side, most are in use then.

    The place that is farthest from where most are already goes there.
    """
    count = len(used)
    first = max(range(slots - count + 1), key=lambda begin: sum(begin <= one < begin + count for one in used))
    window = range(first, first + count)
    outside = max((one for one in used if one not in window), key=lambda one: max(first - one, one - window[-1]))
    return outside, next(one for one in window if one not in used)
