"""Where do the factors of the adapters in use lie, and how does one get there?

One array per factor input of the graph; a slot is some rows of each. The engine reads them where they are, so that an
adapter is in use as soon as it is written, and is pointed at the places of those that an iteration uses. What no
adapter fills is 0. Scales are multiplied into B. All lie in one mapping, on huge pages where the kernel has them: each
token reads them.
"""

import contextlib
import math
import mmap
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from llmhostd.checkpoints.tensors import linear_shapes
from llmhostd.domain.errors import EngineError
from llmhostd.domain.model import AdapterSlots, Architecture, ComputePrecision
from llmhostd.engines.interface import Int32s, Iteration, ModuleRange
from llmhostd.loader.adapter import AdapterWeights, Factor
from llmhostd.loader.safetensors_writer import to_bf16
from llmhostd_openvino.low_rank import FACTOR_SLOTS, a_name, b_name, factor_shapes, groups
from llmhostd_openvino.slot_rows import SlotView

Values = npt.NDArray[Any]
"""f32, or bf16 as uint16."""
_ALIGN_BYTES = 64
"""A cache line."""
_KEPT_VIEWS = 16
"""The engine's views of slots side by side: some hundred small objects each, 1 ms to make."""


class SlotFactors:
    """The factor inputs of one instance."""

    def __init__(self, slots: AdapterSlots, a: Architecture, modules: ModuleRange, compute: ComputePrecision) -> None:
        self.slots = slots
        self._linear = linear_shapes(a)
        self._layers = a.layers
        self._modules = modules
        stored = np.dtype(np.float32 if compute is ComputePrecision.F32 else np.uint16)
        self._arrays = _zeros(factor_shapes(slots, a, modules), stored)
        self._tensors: dict[SlotView, Mapping[str, ov.Tensor]] = {}
        self._place_of = np.arange(slots.slots, dtype=np.int32)
        """By slot; slots change places."""
        self._filled = np.zeros(slots.slots, bool)
        self._touched = np.zeros(slots.slots, bool)
        """Slots that may hold other than 0: fresh arrays take no memory until they are written."""

    @property
    def held_bytes(self) -> int:
        """Bytes of all slots, filled or not."""
        return sum(one.nbytes for one in self._arrays.values())

    def tensors(self, view: SlotView) -> Mapping[str, ov.Tensor]:
        """Views by name of the graph's input."""
        if view not in self._tensors:
            self._tensors[view] = self._viewed(view)
            if len(self._tensors) > _KEPT_VIEWS:
                del self._tensors[next(iter(self._tensors))]
        return self._tensors[view]

    def _viewed(self, view: SlotView) -> Mapping[str, ov.Tensor]:
        count = view.end - view.first
        batch = count if view.apart else 1
        made = {FACTOR_SLOTS: ov.Tensor(np.arange(view.first, view.end, dtype=np.int32).reshape(batch, -1))}
        for name, one in self._arrays.items():
            each = len(one) // self.slots.slots
            part = one[view.first * each : view.end * each]
            shape = ov.Shape([batch, len(part) // batch, part.shape[1]])
            made[name] = ov.Tensor(part.reshape(-1), shape, factor_type(one.dtype == np.float32))
        return made

    def check(self, iteration: Iteration) -> None:
        """Raise EngineError for a slot that holds nothing."""
        adapters = iteration.adapters
        if adapters is None:
            return
        used = adapters[adapters != -1]
        if used.size and not (used.min() >= 0 and used.max() < self.slots.slots and self._filled[used].all()):
            raise EngineError(f"an iteration names adapter slots {used.tolist()}; not all of them hold an adapter")

    def places(self, slots: Int32s) -> Int32s:
        """Say where slots lie; -1 stays -1."""
        return np.where(slots == -1, np.int32(-1), self._place_of[slots])

    def exchange(self, place: int, other: int) -> None:
        """Let what lies in two places change them. Nobody may read or write either meanwhile."""
        for one in self._arrays.values():
            here, there = self._at(one, place), self._at(one, other)
            kept = here.copy()
            here[:] = there
            there[:] = kept
        here_slot, there_slot = (int(np.flatnonzero(self._place_of == each)[0]) for each in (place, other))
        self._place_of[[here_slot, there_slot]] = other, place

    def put(self, slot: int, weights: AdapterWeights | None) -> None:
        """See `AdaptableInstance.set_adapter`, of a slot that exists; after an error it is for `empty` to clear."""
        self.empty(slot)
        if weights is None:
            return
        self._check(weights)
        self._touched[slot] = True
        self._write(slot, weights)
        self._filled[slot] = True

    def empty(self, slot: int) -> None:
        """Let a slot hold nothing."""
        self._filled[slot] = False
        if self._touched[slot]:
            self._clear(slot)

    def _check(self, weights: AdapterWeights) -> None:
        adapter, slots = weights.adapter, self.slots
        if adapter.rank > slots.rank:
            raise EngineError(f"{weights.path}: its rank {adapter.rank} does not fit into slots of rank {slots.rank}")
        other = [name for name in adapter.modules if name not in slots.modules]
        if other:
            raise EngineError(f"{weights.path}: updates {', '.join(other)}, for which this instance has no room")
        for one in adapter.linears:
            if one.layer >= self._layers or self._linear[f"{one.name}.weight"] != (one.outputs, one.inputs):
                raise EngineError(f"{weights.path}: is an adapter for another base than this instance's")

    def _write(self, slot: int, weights: AdapterWeights) -> None:
        group_of = {name: group for group in groups(self.slots) for name in group}
        for one in weights.factors:
            layer, name, rank = one.linear.layer, one.linear.name, one.linear.rank
            if not self._modules.first <= layer < self._modules.end:
                continue
            group = group_of[name]
            low = self._of_slot(a_name(layer, group), slot)[group.index(name) * self.slots.rank :]
            high = self._of_slot(b_name(layer, name), slot)
            low[:rank] = one.a if one.a_dtype == _kept_type(low) else _converted(_floats(one.a, one.a_dtype), low)
            with np.errstate(over="ignore"):
                scaled = _converted(_floats(one.b, one.b_dtype) * np.float32(one.linear.scale), high)
            # Another request's product is 0; 0 times what is not finite would not be.
            if not np.isfinite(_floats(scaled, _kept_type(high))).all():
                raise EngineError(f"{weights.path}: {name} of layer {layer} is too large for this precision")
            high[:rank] = scaled.T

    def _clear(self, slot: int) -> None:
        for name in self._arrays:
            self._of_slot(name, slot)[:] = 0
        self._touched[slot] = False

    def _of_slot(self, name: str, slot: int) -> Values:
        """View a slot's A `[len(group) * rank, inputs]`, or its B, transposed: `[rank, outputs]`."""
        return self._at(self._arrays[name], self._place_of[slot])

    def _at(self, array: Values, place: int) -> Values:
        each = len(array) // self.slots.slots
        return array[place * each : (place + 1) * each]


def _zeros(shapes: Mapping[str, tuple[int, int]], stored: np.dtype[Any]) -> dict[str, Values]:
    """Make arrays that take no memory until they are written."""
    begins, end = {}, 0
    for name, shape in shapes.items():
        begins[name] = end
        end += -(-math.prod(shape) * stored.itemsize // _ALIGN_BYTES) * _ALIGN_BYTES
    mapped = mmap.mmap(-1, max(end, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return {
        name: np.frombuffer(mapped, stored, math.prod(shape), begins[name]).reshape(shape)
        for name, shape in shapes.items()
    }


def factor_type(f32: bool) -> ov.Type:
    """Return the type of the factor inputs under arithmetic in f32, or in bf16."""
    return ov.Type.f32 if f32 else ov.Type.bf16


def _kept_type(values: Values) -> str:
    return "F32" if values.dtype == np.float32 else "BF16"


def _floats(values: Factor, dtype: str) -> npt.NDArray[np.float32]:
    if dtype == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32, copy=False)


def _converted(values: npt.NDArray[np.float32], like: Values) -> Values:
    return values if like.dtype == np.float32 else to_bf16(values)
