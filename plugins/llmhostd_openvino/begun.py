"""How far is an iteration through a chain of parts, of which not all have their weights yet?

Execute-while-load on one node (λScale §4): the first parts compute while the bytes of later ones are still being read.
"""

from collections.abc import Callable, Sequence

import numpy as np
import openvino as ov

from llmhostd.engines.interface import Iteration
from llmhostd_openvino.instance_slots import InstanceSlots
from llmhostd_openvino.padding import pad
from llmhostd_openvino.part import Part
from llmhostd_openvino.slot_rows import SlotRows


class Begun:
    """One iteration, and what was computed of it so far. The caches must not change under it."""

    def __init__(self, iteration: Iteration, parts: Sequence[Part], slots: InstanceSlots | None) -> None:
        """Begin with the first of the parts. Raises EngineError for an adapter slot that holds nothing."""
        self._iteration = iteration
        scratch_block = parts[0].arena.scratch_block
        self._slot_rows: SlotRows | None = None
        if slots is None:
            self._padded = pad(iteration, scratch_block)
        else:
            whole = parts[0].modules.embedding and parts[-1].modules.head
            self._padded, self._slot_rows = slots.arranged(iteration, scratch_block, any_order=whole)
        self._done = 0
        self._output: ov.Tensor | None = None

    @property
    def slots(self) -> int:
        """How many slots of adapters it looks at."""
        return self._slot_rows.view.end - self._slot_rows.view.first if self._slot_rows else 0

    def is_of(self, iteration: Iteration) -> bool:
        """Whether this computes the same, to the same places. Hidden states may have changed where they lie."""
        return iteration.hidden is None and all(
            np.array_equal(getattr(iteration, name), getattr(self._iteration, name)) for name in Iteration.__slots__
        )

    def as_far_as_there(self, parts: Sequence[Part]) -> None:
        """Compute the next parts, up to the first that lacks weights. Raises as a part does."""
        while self._done < len(parts) and parts[self._done].there:
            self._output = parts[self._done].run(self._padded, self._output, self._slot_rows)
            self._done += 1

    def through_unless(self, parts: Sequence[Part], waits: Callable[[], bool]) -> ov.Tensor | None:
        """As `through`, from the first part; None: before one of them, somebody waited."""
        for part in parts:
            if waits():
                return None
            self._output = part.run(self._padded, self._output, self._slot_rows)
        return self._output

    def through(self, parts: Sequence[Part]) -> ov.Tensor:
        """Compute the parts that are left; their output. Raises as a part does."""
        for part in parts[self._done :]:
            self._output = part.run(self._padded, self._output, self._slot_rows)
        if self._output is None:
            raise AssertionError("an instance has parts")
        return self._output
