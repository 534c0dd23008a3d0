"""What must happen to the slots of one instance before an iteration, and while others are filled?

All parts of an instance have the same adapters in the same places.
"""

from collections.abc import Sequence
from copy import copy
from threading import Lock

from llmhostd.domain.errors import EngineError
from llmhostd.domain.model import AdapterSlots
from llmhostd.engines.interface import Iteration
from llmhostd.loader.adapter import AdapterWeights
from llmhostd_openvino.slot_factors import SlotFactors
from llmhostd_openvino.slot_rows import SlotRows, arranged, slots_needed
from llmhostd_openvino.slot_swaps import SlotSwaps


class InstanceSlots:
    """The slots of all parts. `put` may be called from another thread than `arranged`."""

    def __init__(self, parts: Sequence[SlotFactors]) -> None:
        self.slots: AdapterSlots = parts[0].slots
        self._parts = tuple(parts)
        self._swaps = SlotSwaps(self.slots.slots)
        self._moving = Lock()
        """Held while a slot is written."""

    @property
    def held_bytes(self) -> int:
        """Bytes of all slots, filled or not."""
        return sum(one.held_bytes for one in self._parts)

    def put(self, slot: int, weights: AdapterWeights | None) -> None:
        """See `AdaptableInstance.set_adapter`."""
        if not 0 <= slot < self.slots.slots:
            raise EngineError(f"adapter slot {slot} does not exist: there are {self.slots.slots}")
        with self._moving:
            try:
                for one in self._parts:
                    one.put(slot, weights)
            except Exception:
                for one in self._parts:  # in all of them, or in none
                    one.empty(slot)
                raise

    def arranged(self, iteration: Iteration, scratch_block: int, *, any_order: bool) -> tuple[Iteration, SlotRows]:
        """Pad an iteration as `slot_rows` does; what it uses may be brought closer together before.

        Raises EngineError for a slot that holds nothing.
        """
        first = self._parts[0]
        first.check(iteration)
        placed = copy(iteration)
        if iteration.adapters is not None:
            placed.adapters = first.places(iteration.adapters)
            if self._brought_together(placed, any_order=any_order):
                placed.adapters = first.places(iteration.adapters)
        return arranged(placed, self.slots.slots, scratch_block, any_order=any_order)

    def _brought_together(self, placed: Iteration, *, any_order: bool) -> bool:
        used = set(() if placed.adapters is None else placed.adapters.tolist()) - {-1}
        swap = self._swaps.due(used, slots_needed(placed, self.slots.slots, any_order=any_order))
        if swap is None or not self._moving.acquire(blocking=False):  # no iteration waits until a slot is filled
            return False
        try:
            for one in self._parts:
                one.exchange(*swap)
        finally:
            self._moving.release()
        return True
