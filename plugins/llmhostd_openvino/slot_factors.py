"""Where do the factors of the adapters in use lie, and how does one get there?

One array per factor input of the graph; a slot is some rows of each A and some columns of each B. The engine reads them
where they are, so that an adapter is in use as soon as it is written. What no adapter fills is 0. Scales are multiplied
into B. All lie in one mapping, on huge pages where the kernel has them: each token reads every one of them.
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
from llmhostd_openvino.low_rank import a_name, b_name, factor_shapes, groups

Values = npt.NDArray[Any]
"""f32, or bf16 as uint16."""
_ALIGN_BYTES = 64
"""A cache line."""


class SlotFactors:
    """The factor inputs of one instance."""

    def __init__(self, slots: AdapterSlots, a: Architecture, modules: ModuleRange, compute: ComputePrecision) -> None:
        self.slots = slots
        self._linear = linear_shapes(a)
        self._layers = a.layers
        self._modules = modules
        stored = np.dtype(np.float32 if compute is ComputePrecision.F32 else np.uint16)
        self._arrays = _zeros(factor_shapes(slots, a, modules), stored)
        self._filled = np.zeros(slots.slots, bool)
        self._touched = np.zeros(slots.slots, bool)
        """Slots that may hold other than 0: fresh arrays take no memory until they are written."""

    @property
    def held_bytes(self) -> int:
        """Bytes of all slots, filled or not."""
        return sum(one.nbytes for one in self._arrays.values())

    def tensors(self) -> dict[str, ov.Tensor]:
        """Views by name of the graph's input."""
        return {
            name: ov.Tensor(one.reshape(-1), ov.Shape(list(one.shape)), factor_type(one.dtype == np.float32))
            for name, one in self._arrays.items()
        }

    def row_slots(self, iteration: Iteration) -> Int32s:
        """Return `[T]`: each token's slot, or -1. Raises EngineError for a slot that holds nothing."""
        adapters = iteration.adapters
        if adapters is None:
            return np.full(len(iteration.positions), -1, np.int32)
        used = adapters[adapters != -1]
        if used.size and not (used.min() >= 0 and used.max() < self.slots.slots and self._filled[used].all()):
            raise EngineError(f"an iteration names adapter slots {used.tolist()}; not all of them hold an adapter")
        return np.repeat(adapters, np.diff(iteration.subsequence_begins))

    def put(self, slot: int, weights: AdapterWeights | None) -> None:
        """See `AdaptableInstance.set_adapter`."""
        if not 0 <= slot < self.slots.slots:
            raise EngineError(f"adapter slot {slot} does not exist: there are {self.slots.slots}")
        self._filled[slot] = False
        if self._touched[slot]:
            self._clear(slot)
        if weights is None:
            return
        self._check(weights)
        self._touched[slot] = True
        try:
            self._write(slot, weights)
        except EngineError:
            self._clear(slot)
            raise
        self._filled[slot] = True

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
            low = self._low(layer, group_of[name], name, slot)
            high = self._high(layer, name, slot)
            low[:rank] = one.a if one.a_dtype == _kept_type(low) else _converted(_floats(one.a, one.a_dtype), low)
            with np.errstate(over="ignore"):
                scaled = _converted(_floats(one.b, one.b_dtype) * np.float32(one.linear.scale), high)
            # Another request's product is 0; 0 times what is not finite would not be.
            if not np.isfinite(_floats(scaled, _kept_type(high))).all():
                raise EngineError(f"{weights.path}: {name} of layer {layer} is too large for this precision")
            high[:, :rank] = scaled

    def _clear(self, slot: int) -> None:
        for layer in range(self._modules.first, self._modules.end):
            for group in groups(self.slots):
                for name in group:
                    self._low(layer, group, name, slot)[:] = 0
                    self._high(layer, name, slot)[:] = 0
        self._touched[slot] = False

    def _low(self, layer: int, group: tuple[str, ...], name: str, slot: int) -> Values:
        """View a slot's A `[rank, inputs]`; linear layers of a group lie one after another."""
        begin = (group.index(name) * self.slots.slots + slot) * self.slots.rank
        return self._arrays[a_name(layer, group)][begin : begin + self.slots.rank]

    def _high(self, layer: int, name: str, slot: int) -> Values:
        """View a slot's B `[outputs, rank]`."""
        begin = slot * self.slots.rank
        return self._arrays[b_name(layer, name)][:, begin : begin + self.slots.rank]


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
