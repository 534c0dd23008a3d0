"""What does a range of modules compute?

A decoder graph built by hand from a checkpoint: token ids or hidden states in, logits or hidden states out. No
exporter, no intermediate files.
"""

from collections.abc import Sequence
from typing import Protocol

import openvino as ov
import openvino.opset13 as ops
from openvino.op import Parameter

from llmhostd.checkpoints.tensors import EMBEDDING, FINAL_NORM, HEAD
from llmhostd.domain.model import Architecture
from llmhostd.engines.interface import ModuleRange
from llmhostd_openvino.low_rank import LowRank
from llmhostd_openvino.ops import (
    Rope,
    heads_first,
    int32,
    ints64,
    join_heads,
    parameter,
    rms_norm,
    split_heads,
    swish,
)
from llmhostd_openvino.paged_attention import BatchInputs, cache_parameters, paged_attention

TOKEN_IDS, HIDDEN, POSITIONS, SAMPLED = "token_ids", "hidden", "positions", "sampled_indices"
"""Names of graph inputs beside those of paged attention."""


class WeightSource(Protocol):
    """What a graph under construction asks of its weights. Nodes compute in f32, as far as the graph says."""

    @property
    def parameters(self) -> Sequence[Parameter]:
        """Inputs of the graph that are weights."""
        ...

    def rows(self, name: str, ids: ov.Node) -> ov.Node:
        """Take rows of a matrix: ids of any shape, one more axis."""
        ...

    def vector(self, name: str) -> ov.Node:
        """Make the node of a norm or a bias."""
        ...

    def product(self, x: ov.Node, name: str) -> ov.Node:
        """Multiply `x [T, inputs]` by a linear weight `[outputs, inputs]`, transposed."""
        ...

    def joint_product(self, x: ov.Node, names: Sequence[str]) -> ov.Node | None:
        """Multiply by several, their results one after another `[T, all outputs]`; None: they are not at one place."""
        ...


def build_graph(
    architecture: Architecture, weights: WeightSource, modules: ModuleRange, low_rank: LowRank | None = None
) -> ov.Model:
    """Build the graph of a range, with room for adapters or without.

    Mapped weights must stay alive until the compiled model has run once.
    """
    return _Decoder(architecture, weights, modules, low_rank).build()


class _Decoder:
    """The graph under construction."""

    def __init__(
        self, architecture: Architecture, weights: WeightSource, modules: ModuleRange, low_rank: LowRank | None
    ) -> None:
        self._a = architecture
        self._modules = modules
        self._low_rank = low_rank
        self._weights = weights
        positions = parameter(ov.Type.i64, [-1], POSITIONS)
        self._batch = BatchInputs.create()
        self._parameters: list[Parameter] = [positions, *self._batch.parameters()]
        self._rope = Rope(self._a, positions)

    def build(self) -> ov.Model:
        x = self._embedding() if self._modules.embedding else self._input(ov.Type.f32, [-1, self._a.hidden], HIDDEN)
        x = self._in_groups(x, self._a.hidden)
        for slot, layer in enumerate(range(self._modules.first, self._modules.end)):
            x = self._layer(x, layer, slot)
        if self._low_rank is not None:
            x = ops.reshape(x, ints64([-1, self._a.hidden]), False)
        if self._modules.head:
            x = self._head(x)
        parameters = [*self._parameters, *self._weights.parameters]
        parameters += self._low_rank.parameters if self._low_rank else []
        return ov.Model([ops.result(x)], parameters, self._a.family)

    def _input(self, element: ov.Type, shape: list[int], name: str) -> Parameter:
        made = parameter(element, shape, name)
        self._parameters.append(made)
        return made

    def _embedding(self) -> ov.Node:
        return self._weights.rows(EMBEDDING, ops.convert(self._input(ov.Type.i64, [-1], TOKEN_IDS), "i32"))

    def _layer(self, x: ov.Node, layer: int, slot: int) -> ov.Node:
        prefix = f"model.layers.{layer}."
        x = ops.add(x, self._attention(self._norm(x, prefix + "input_layernorm.weight"), layer, slot))
        return ops.add(x, self._mlp(self._norm(x, prefix + "post_attention_layernorm.weight"), layer))

    def _attention(self, x: ov.Node, layer: int, slot: int) -> ov.Node:
        a = self._a
        queries, keys, values = self._projections(x, layer)
        query = join_heads(self._rope(self._heads(queries, layer, "q", a.heads)))
        key = join_heads(self._rope(self._heads(keys, layer, "k", a.kv_heads)))
        value = join_heads(self._heads(values, layer, "v", a.kv_heads))
        caches = cache_parameters(slot)
        self._parameters += caches
        windowed = a.sliding_window_tokens is not None and layer >= a.sliding_from_layer
        window = a.sliding_window_tokens or 0 if windowed else 0
        attended = paged_attention(query, key, value, caches, self._batch, a, window)
        attended = self._in_groups(attended, a.heads * a.head_dim)
        return self._projection(attended, layer, "self_attn.o_proj")

    def _projections(self, x: ov.Node, layer: int) -> list[ov.Node]:
        """Project to queries, keys and values `[T, heads * head_dim]`, with the bias of the family (Qwen2).

        By one product if that is possible: an iteration takes 2-4 % less, as that of few heads keeps no thread busy.
        """
        a, names = self._a, [f"self_attn.{which}_proj" for which in "qkv"]
        full = [f"model.layers.{layer}.{name}" for name in names]
        joint = self._weights.joint_product(x, [f"{one}.weight" for one in full])
        if joint is None:
            made = [self._biased(self._weights.product(x, f"{one}.weight"), [one]) for one in full]
        else:
            widths = [heads * a.head_dim for heads in (a.heads, a.kv_heads, a.kv_heads)]
            made = ops.variadic_split(self._biased(joint, full), int32(-1), ints64(widths)).outputs()
        return [self._updated(y, x, layer, name) for y, name in zip(made, names, strict=True)]

    def _biased(self, y: ov.Node, layers: Sequence[str]) -> ov.Node:
        biases = [self._weights.vector(f"{one}.bias") for one in layers] if self._a.qkv_bias else []
        if not biases:
            return y
        return ops.add(y, biases[0] if len(biases) == 1 else ops.concat(biases, 0))

    def _heads(self, x: ov.Node, layer: int, which: str, heads: int) -> ov.Node:
        """Split a projection to `[T, heads, 1, head_dim]`, with the norm of the family (Qwen3)."""
        split = split_heads(x, heads, self._a.head_dim)
        if self._a.qk_norm and which != "v":
            split = self._norm(split, f"model.layers.{layer}.self_attn.{which}_norm.weight")
        return heads_first(split)

    def _mlp(self, x: ov.Node, layer: int) -> ov.Node:
        gate = swish(self._projection(x, layer, "mlp.gate_proj"))
        return self._projection(ops.multiply(gate, self._projection(x, layer, "mlp.up_proj")), layer, "mlp.down_proj")

    def _head(self, x: ov.Node) -> ov.Node:
        rows = ops.gather(x, self._input(ov.Type.i64, [-1], SAMPLED), int32(0))
        head = EMBEDDING if self._a.tied_embeddings else HEAD
        return self._weights.product(self._norm(rows, FINAL_NORM), head)

    def _norm(self, x: ov.Node, name: str) -> ov.Node:
        return rms_norm(x, self._weights.vector(name), self._a.norm_eps)

    def _projection(self, x: ov.Node, layer: int, name: str) -> ov.Node:
        """Apply a linear layer of a decoder layer."""
        return self._updated(self._weights.product(x, f"model.layers.{layer}.{name}.weight"), x, layer, name)

    def _updated(self, y: ov.Node, x: ov.Node, layer: int, name: str) -> ov.Node:
        """Add the updates of adapters, if there is room for them."""
        return y if self._low_rank is None else self._low_rank.updated(y, x, layer, name)

    def _in_groups(self, x: ov.Node, width: int) -> ov.Node:
        """`[T, width]`, or with adapters `[batch, rows, width]`."""
        return x if self._low_rank is None else self._low_rank.in_groups(x, width)
