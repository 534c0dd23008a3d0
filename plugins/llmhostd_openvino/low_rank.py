"""How do several adapters update one linear layer in one batch?

All slots' factors are stacked along the rank and are inputs of the graph: y += mine(x A^T) B^T, where `mine` keeps, of
each token's R = slots * rank products, those of its own slot and makes the others 0. So one graph serves any mix of
adapters, a slot is filled by writing its part, and what lies in the others' slots cannot reach a token: it is selected
away, not multiplied away. Linear layers with the same input share one product with their stacked A.

Right sides have the longer axis of B first, like weights: read in the other order, they take twice the time.
"""

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from openvino.op import Parameter

from llmhostd.checkpoints.tensors import linear_shapes
from llmhostd.domain.model import AdapterSlots, Architecture
from llmhostd.engines.interface import ModuleRange
from llmhostd_openvino.ops import floats, int32, ints64, parameter

ROW_SLOTS = "row_slots"
"""Name of the graph input `[T]`: each token's slot, or -1."""

_SAME_INPUT = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)


def groups(slots: AdapterSlots) -> tuple[tuple[str, ...], ...]:
    """Linear layers that adapters may update, those with the same input together."""
    chosen = (tuple(name for name in group if name in slots.modules) for group in _SAME_INPUT)
    return tuple(group for group in chosen if group)


def factor_shapes(slots: AdapterSlots, a: Architecture, modules: ModuleRange) -> dict[str, tuple[int, int]]:
    """Shapes of factor inputs by name: A `[len(group) * R, inputs]` per group, B `[outputs, R]` per linear layer."""
    columns, linear = slots.slots * slots.rank, linear_shapes(a)
    shapes = {}
    for layer in range(modules.first, modules.end):
        for group in groups(slots):
            shapes[a_name(layer, group)] = (len(group) * columns, linear[f"{group[0]}.weight"][1])
            shapes |= {b_name(layer, name): (linear[f"{name}.weight"][0], columns) for name in group}
    return shapes


def a_name(layer: int, group: tuple[str, ...]) -> str:
    """Name the stacked A of linear layers with the same input."""
    return f"lora_a.{layer}.{group[0]}"


def b_name(layer: int, name: str) -> str:
    """Name the B of a linear layer."""
    return f"lora_b.{layer}.{name}"


class LowRank:
    """The part of a graph under construction that computes updates."""

    def __init__(self, slots: AdapterSlots, a: Architecture, modules: ModuleRange, element: ov.Type) -> None:
        """`element`: type of the factor inputs, that of the arithmetic."""
        self._columns = slots.slots * slots.rank
        self._groups = {name: group for group in groups(slots) for name in group}
        row_slots = parameter(ov.Type.i32, [-1], ROW_SLOTS)
        self._factors = {
            name: parameter(element, shape, name) for name, shape in factor_shapes(slots, a, modules).items()
        }
        self.parameters: list[Parameter] = [row_slots, *self._factors.values()]
        slot_of_column = np.repeat(np.arange(slots.slots, dtype=np.int32), slots.rank)[None]
        widest = max(len(group) for group in self._groups.values())
        rows = ops.unsqueeze(row_slots, ints64([1]))
        self._mine = [ops.equal(rows, ops.constant(np.tile(slot_of_column, n + 1))) for n in range(widest)]
        """For groups of one linear layer, of two, and so on."""
        self._products: dict[tuple[int, str], ov.Node] = {}

    def updated(self, y: ov.Node, x: ov.Node, layer: int, name: str) -> ov.Node:
        """Add all updates of a linear layer to its result `y [T, outputs]`; `x [T, inputs]` is its input.

        Layers of one group must be given the same input.
        """
        if name not in self._groups:
            return y
        if (layer, name) not in self._products:
            self._multiply(x, layer, self._groups[name])
        update = ops.matmul(self._products.pop((layer, name)), self._factor(b_name(layer, name)), False, True)
        return ops.add(y, update)

    def _multiply(self, x: ov.Node, layer: int, group: tuple[str, ...]) -> None:
        """Make each token's own products `[T, R]` for every linear layer of a group."""
        a = self._factor(a_name(layer, group))
        mine = ops.select(self._mine[len(group) - 1], ops.matmul(x, a, False, True), floats(0.0))
        for place, one in enumerate(ops.split(mine, int32(-1), len(group)).outputs()):
            self._products[layer, group[place]] = one

    def _factor(self, name: str) -> ov.Node:
        factor = self._factors[name]
        return factor if factor.get_element_type() == ov.Type.f32 else ops.convert(factor, "f32")
