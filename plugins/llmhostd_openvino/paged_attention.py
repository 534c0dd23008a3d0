"""How is OpenVINO's paged attention called? The only module that touches this private, version-pinned operation.

Inputs of the op, in its order (2026.4.1): query, key, value, key cache, value cache, past lengths, subsequence begins,
block indices, block indices begins, scale, sliding window, then those of features we do not use, as empty constants.
"""

from dataclasses import dataclass

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from openvino.op import Parameter, _PagedAttentionExtension

from llmhostd.domain.model import Architecture, KvPrecision
from llmhostd_openvino.ops import floats, int32, parameter

BLOCK_TOKENS = 32
"""Tokens per KV block: fixed by the CPU plugin."""

KV_TYPES = {KvPrecision.U8: "u8", KvPrecision.BF16: "bf16", KvPrecision.F32: "f32"}
"""Values of the plugin's property KV_CACHE_PRECISION."""


@dataclass(frozen=True)
class BatchInputs:
    """The graph inputs that say which rows belong to which request; see `engines.interface.Iteration`."""

    past_lens: Parameter
    subsequence_begins: Parameter
    block_indices: Parameter
    block_indices_begins: Parameter
    max_context_len: Parameter

    @classmethod
    def create(cls) -> "BatchInputs":
        """Make the five parameters."""
        vectors = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")
        return cls(
            **{name: parameter(ov.Type.i32, [-1], name) for name in vectors},
            max_context_len=parameter(ov.Type.i32, [], "max_context_len"),
        )

    def parameters(self) -> list[Parameter]:
        """List them in the order of the fields."""
        return [
            self.past_lens,
            self.subsequence_begins,
            self.block_indices,
            self.block_indices_begins,
            self.max_context_len,
        ]


def cache_parameters(slot: int) -> tuple[Parameter, Parameter]:
    """Make the key and value cache inputs of the `slot`-th layer of a graph; the plugin gives them type and shape."""
    keys, values = (parameter(ov.Type.dynamic, [-1] * 4, f"{kind}_cache.{slot}") for kind in ("key", "value"))
    return keys, values


def paged_attention(
    query: ov.Node,
    key: ov.Node,
    value: ov.Node,
    caches: tuple[Parameter, Parameter],
    batch: BatchInputs,
    architecture: Architecture,
    window_tokens: int,
) -> ov.Node:
    """Attend. Query `[T, heads * head_dim]`, key and value `[T, kv_heads * head_dim]`; returns what query is.

    `window_tokens`: how far back a token looks, itself included; 0: everywhere.
    """
    a = architecture
    inputs = [
        query, key, value, *caches,
        batch.past_lens, batch.subsequence_begins, batch.block_indices, batch.block_indices_begins,
        floats(a.head_dim**-0.5), int32(window_tokens),
        _no_floats(), batch.max_context_len,  # alibi slopes
        _no_ints(), _no_ints(), _no_ints(), _no_floats(),  # score aggregation; rotation of evicted blocks
        _no_floats(), int32(0), int32(0),  # xattention
        _no_floats((0, 0, 0, 0)),  # sinks
        int32(0), _no_ints(), _no_ints(),  # adaptive eviction
        _no_ints(), _no_ints(), ops.constant(np.zeros(0, np.uint8)), _no_ints(),  # token types; tree masks
    ]  # fmt: skip
    attention = _PagedAttentionExtension([one.output(0) for one in inputs])
    info = attention.get_rt_info()
    info["num_k_heads"] = info["num_v_heads"] = a.kv_heads
    info["k_head_size"] = info["v_head_size"] = a.head_dim
    return attention.output(0)


def _no_ints() -> ov.Node:
    return ops.constant(np.zeros(0, np.int32))


def _no_floats(shape: tuple[int, ...] = (0,)) -> ov.Node:
    return ops.constant(np.zeros(shape, np.float32))
