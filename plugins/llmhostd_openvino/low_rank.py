"""How do several adapters update one linear layer in one batch?

The factors of all slots that an iteration uses are inputs of the graph: y += mine(x A^T) B, where `mine` keeps, of each
token's products, those of its own slot and makes the others 0. So one graph serves any mix of adapters, a slot is
filled by writing its part, and what lies in the others' slots cannot reach a token: it is selected away, not
multiplied away.

Rows and factors come as `batch` groups that are multiplied apart (`slot_rows`): all in one, or one token and one slot
in each. Hidden states have that axis throughout, and linear layers with the same input share one product with their A:
each further operation costs some 5 us per layer, as its code and descriptors have left the caches while weights passed.
"""

import openvino as ov
import openvino.opset13 as ops
from openvino.op import Parameter

from llmhostd.checkpoints.tensors import linear_shapes
from llmhostd.domain.model import AdapterSlots, Architecture
from llmhostd.engines.interface import ModuleRange
from llmhostd_openvino.ops import floats, int32, ints64, parameter

ROW_SLOTS = "row_slots"
"""Name of the graph input `[batch, rows]`: each token's slot, or -1."""
FACTOR_SLOTS = "factor_slots"
"""Name of the graph input `[batch, slots]`: the slots that the factors are of."""

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
    """Shapes of all slots' factors by name: A `[slots * len(group) * rank, inputs]`, B `[slots * rank, outputs]`."""
    linear, ranks = linear_shapes(a), slots.slots * slots.rank
    shapes = {}
    for layer in range(modules.first, modules.end):
        for group in groups(slots):
            shapes[a_name(layer, group)] = (len(group) * ranks, linear[f"{group[0]}.weight"][1])
            shapes |= {b_name(layer, name): (ranks, linear[f"{name}.weight"][0]) for name in group}
    return shapes


def a_name(layer: int, group: tuple[str, ...]) -> str:
    """Name the A of linear layers with the same input."""
    return f"lora_a.{layer}.{group[0]}"


def b_name(layer: int, name: str) -> str:
    """Name the B of a linear layer."""
    return f"lora_b.{layer}.{name}"


class LowRank:
    """The part of a graph under construction that computes updates."""

    def __init__(self, slots: AdapterSlots, a: Architecture, modules: ModuleRange, element: ov.Type) -> None:
        """`element`: type of the factor inputs, that of the arithmetic."""
        self._rank = slots.rank
        self._groups = {name: group for group in groups(slots) for name in group}
        row_slots, factor_slots = (parameter(ov.Type.i32, [-1, -1], name) for name in (ROW_SLOTS, FACTOR_SLOTS))
        self._factors = {
            name: parameter(element, [-1, -1, width], name)
            for name, (_, width) in factor_shapes(slots, a, modules).items()
        }
        self.parameters: list[Parameter] = [row_slots, factor_slots, *self._factors.values()]
        rows, slots_of = ops.unsqueeze(row_slots, ints64([2, 3])), ops.unsqueeze(factor_slots, ints64([1, 3]))
        mine = ops.tile(ops.equal(rows, slots_of), ints64([1, 1, 1, slots.rank]))
        self._mine = ops.reshape(mine, ints64([0, 0, -1]), True)
        """`[batch, rows, slots * rank]`."""
        self._mine_by_slot = ops.unsqueeze(mine, ints64([3]))
        """`[batch, rows, slots, 1, rank]`."""
        self._batch_and_rows = ops.shape_of(row_slots, "i64")
        self._products: dict[tuple[int, str], ov.Node] = {}

    def in_groups(self, x: ov.Node, width: int) -> ov.Node:
        """`[T, width]` -> `[batch, rows, width]`."""
        return ops.reshape(x, ops.concat([self._batch_and_rows, ints64([width])], 0), False)

    def updated(self, y: ov.Node, x: ov.Node, layer: int, name: str) -> ov.Node:
        """Add all updates of a linear layer to its result `y`; `x` is its input, both `[batch, rows, width]`.

        Layers of one group must be given the same input.
        """
        if name not in self._groups:
            return y
        if (layer, name) not in self._products:
            self._multiply(x, layer, self._groups[name])
        products = self._products.pop((layer, name))
        return ops.add(y, ops.matmul(products, self._factor(b_name(layer, name)), False, False))

    def _multiply(self, x: ov.Node, layer: int, group: tuple[str, ...]) -> None:
        """Make each token's own products `[batch, rows, slots * rank]` for every linear layer of a group."""
        products = ops.matmul(x, self._factor(a_name(layer, group)), False, True)
        if len(group) == 1:
            self._products[layer, group[0]] = ops.select(self._mine, products, floats(0.0))
            return
        by_slot = ops.reshape(products, ints64([0, 0, -1, len(group), self._rank]), True)
        mine = ops.select(self._mine_by_slot, by_slot, floats(0.0))
        for name, one in zip(group, ops.split(mine, int32(3), len(group)).outputs(), strict=True):
            self._products[layer, name] = ops.reshape(one, ints64([0, 0, -1]), True)

    def _factor(self, name: str) -> ov.Node:
        factor = self._factors[name]
        return factor if factor.get_element_type() == ov.Type.f32 else ops.convert(factor, "f32")
