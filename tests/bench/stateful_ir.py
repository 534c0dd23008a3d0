"""How does a checkpoint become what openvino-genai loads?

Its ContinuousBatchingPipeline reads an intermediate representation with contiguous, stateful attention, as exporters
write it, and replaces that attention by the paged one itself. This builds the same graph from our own checkpoint, so
that both sides of a comparison hold the same weights and nothing else has to be installed. Plain Llama only.
"""

from pathlib import Path

import openvino as ov
import openvino.opset13 as ops
from llmhostd_openvino.ops import floats, int32, ints64, inverse_frequencies, parameter, rms_norm, swish
from llmhostd_openvino.weights import StoredWeights
from openvino.op.util import Variable, VariableInfo

from llmhostd.checkpoints.tensors import EMBEDDING, FINAL_NORM, HEAD
from llmhostd.loader.safetensors import open_checkpoint


def write_stateful_ir(checkpoint: Path, directory: Path) -> None:
    """Write openvino_model.xml and .bin into `directory`."""
    decoder = _StatefulDecoder(checkpoint)
    ov.save_model(decoder.build(), directory / "openvino_model.xml", compress_to_fp16=False)


class _StatefulDecoder:
    """The graph under construction; hidden states are `[batch, tokens, hidden]`."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = open_checkpoint(checkpoint)
        self._a, self._weights = self._checkpoint.architecture, StoredWeights(self._checkpoint)
        names = ("input_ids", "attention_mask", "position_ids")
        self._ids, self._mask, self._positions = (parameter(ov.Type.i64, [-1, -1], name) for name in names)
        self._beams = parameter(ov.Type.i32, [-1], "beam_idx")
        self._batch = ops.gather(ops.shape_of(self._ids), ints64([0]), int32(0))
        self._sinks: list[ov.Node] = []
        self._cos, self._sin = self._angles()

    def build(self) -> ov.Model:
        x = self._weights.rows(EMBEDDING, ops.convert(self._ids, "i32"))
        for layer in range(self._a.layers):
            prefix = f"model.layers.{layer}."
            x = ops.add(x, self._attention(self._norm(x, prefix + "input_layernorm.weight"), prefix, layer))
            y = self._norm(x, prefix + "post_attention_layernorm.weight")
            gate = swish(self._linear(y, prefix + "mlp.gate_proj.weight"))
            wide = ops.multiply(gate, self._linear(y, prefix + "mlp.up_proj.weight"))
            x = ops.add(x, self._linear(wide, prefix + "mlp.down_proj.weight"))
        logits = ops.result(self._linear(self._norm(x, FINAL_NORM), HEAD))
        logits.output(0).get_tensor().set_names({"logits"})
        return ov.Model([logits], self._sinks, [self._ids, self._mask, self._positions, self._beams], "llama")

    def _attention(self, x: ov.Node, prefix: str, layer: int) -> ov.Node:
        a = self._a
        query = self._rope(self._heads(x, prefix + "self_attn.q_proj.weight", a.heads))
        key = self._rope(self._heads(x, prefix + "self_attn.k_proj.weight", a.kv_heads))
        value = self._heads(x, prefix + "self_attn.v_proj.weight", a.kv_heads)
        key, value = (
            self._grow(one, f"past_key_values.{layer}.{kind}") for one, kind in ((key, "key"), (value, "value"))
        )
        mask = ops.unsqueeze(ops.convert(self._mask, "f32"), ints64([1, 2]))
        attended = ops.scaled_dot_product_attention(query, key, value, mask, floats(a.head_dim**-0.5))
        rows = ops.reshape(ops.transpose(attended, ints64([0, 2, 1, 3])), ints64([0, 0, a.heads * a.head_dim]), True)
        return self._linear(rows, prefix + "self_attn.o_proj.weight")

    def _grow(self, new: ov.Node, name: str) -> ov.Node:
        """Append to a state and repeat it for grouped queries."""
        a = self._a
        shape = ov.PartialShape([-1, a.kv_heads, -1, a.head_dim])
        info = VariableInfo()
        info.data_shape, info.data_type, info.variable_id = shape, ov.Type.f32, name
        variable = Variable(info)
        empty = ops.broadcast(floats(0.0), ops.concat([self._batch, ints64([a.kv_heads, 0, a.head_dim])], 0))
        past = ops.gather(ops.read_value(empty, variable), self._beams, int32(0))
        whole = ops.concat([past, new], 2)
        self._sinks.append(ops.assign(whole, variable))
        groups = a.heads // a.kv_heads
        wide = ops.unsqueeze(whole, ints64([2]))
        shape_now = ops.shape_of(whole)
        target = ops.concat(
            [
                ops.gather(shape_now, ints64([0, 1]), int32(0)),
                ints64([groups]),
                ops.gather(shape_now, ints64([2, 3]), int32(0)),
            ],
            0,
        )
        repeated = ops.broadcast(wide, target, broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(repeated, ints64([0, a.heads, -1, a.head_dim]), True)

    def _angles(self) -> tuple[ov.Node, ov.Node]:
        half = self._a.head_dim // 2
        inverse = floats(inverse_frequencies(self._a).reshape(1, half, 1))
        at = ops.convert(ops.unsqueeze(self._positions, ints64([1])), "f32")
        one_each = ops.concat([self._batch, ints64([half, 1])], 0)
        angles = ops.transpose(ops.matmul(ops.broadcast(inverse, one_each), at, False, False), ints64([0, 2, 1]))
        both = ops.concat([angles, angles], -1)
        return ops.unsqueeze(ops.cos(both), ints64([1])), ops.unsqueeze(ops.sin(both), ints64([1]))

    def _rope(self, x: ov.Node) -> ov.Node:
        half, last = self._a.head_dim // 2, ints64([3])
        high = ops.slice(x, ints64([half]), ints64([2**63 - 1]), ints64([1]), last)
        low = ops.slice(x, ints64([0]), ints64([half]), ints64([1]), last)
        rotated = ops.concat([ops.multiply(high, floats(-1.0)), low], -1)
        return ops.add(ops.multiply(x, self._cos), ops.multiply(rotated, self._sin))

    def _heads(self, x: ov.Node, name: str, heads: int) -> ov.Node:
        split = ops.reshape(self._linear(x, name), ints64([0, 0, heads, self._a.head_dim]), True)
        return ops.transpose(split, ints64([0, 2, 1, 3]))

    def _norm(self, x: ov.Node, name: str) -> ov.Node:
        return rms_norm(x, self._weights.vector(name), self._a.norm_eps)

    def _linear(self, x: ov.Node, name: str) -> ov.Node:
        return self._weights.product(x, name)
