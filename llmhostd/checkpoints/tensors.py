"""Which tensors must a checkpoint hold, of what shape, and which module does each belong to?"""

from enum import StrEnum

from llmhostd.checkpoints.quantization import Quantization
from llmhostd.domain.model import Architecture, WeightFormat
from llmhostd.domain.words import Word

FLOATS = ("BF16", "F16", "F32")
"""Stored types (in safetensors' words) that a plain weight may have."""

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"


class Module(StrEnum):
    """A movable part of a model (CoCoServe §3): what a range of modules is made of."""

    EMBEDDING = "embedding"
    LAYER = "layer"
    HEAD = "head"
    """The final norm and the projection to logits."""


class TensorSpec(Word):
    """One tensor as the architecture demands it."""

    name: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]
    """Stored types that are accepted."""
    module: Module
    layer: int | None = None
    """For `Module.LAYER`: which."""


def expected_tensors(architecture: Architecture, quantization: Quantization | None = None) -> tuple[TensorSpec, ...]:
    """List all tensors in the order of computation: embedding, layers, final norm, head (unless it is tied)."""
    a = architecture
    specs = [TensorSpec(name=EMBEDDING, shape=(a.vocab, a.hidden), dtypes=FLOATS, module=Module.EMBEDDING)]
    for layer in range(a.layers):
        specs += layer_tensors(a, layer, quantization)
    return (*specs, *head_tensors(a, quantization))


def layer_tensors(a: Architecture, layer: int, quantization: Quantization | None = None) -> list[TensorSpec]:
    """List the tensors of one decoder layer."""
    prefix = f"model.layers.{layer}."
    vectors: dict[str, int] = {"input_layernorm.weight": a.hidden, "post_attention_layernorm.weight": a.hidden}
    if a.qk_norm:
        vectors |= {"self_attn.q_norm.weight": a.head_dim, "self_attn.k_norm.weight": a.head_dim}
    if a.qkv_bias:
        widths = {"q": a.heads, "k": a.kv_heads, "v": a.kv_heads}
        vectors |= {f"self_attn.{one}_proj.bias": heads * a.head_dim for one, heads in widths.items()}
    specs = [
        TensorSpec(name=prefix + name, shape=(width,), dtypes=FLOATS, module=Module.LAYER, layer=layer)
        for name, width in vectors.items()
    ]
    for name, (outputs, inputs) in linear_shapes(a).items():
        specs += _linear(prefix + name, outputs, inputs, quantization, Module.LAYER, layer)
    return specs


def head_tensors(a: Architecture, quantization: Quantization | None = None) -> list[TensorSpec]:
    """List the final norm and, unless it is tied to the embedding, the head. The head of an int4 checkpoint is int8."""
    norm = TensorSpec(name=FINAL_NORM, shape=(a.hidden,), dtypes=FLOATS, module=Module.HEAD)
    if a.tied_embeddings:
        return [norm]
    rows = Quantization(format=WeightFormat.INT8) if quantization else None
    return [norm, *_linear(HEAD, a.vocab, a.hidden, rows, Module.HEAD, None)]


def linear_shapes(a: Architecture) -> dict[str, tuple[int, int]]:
    """Map each linear weight of a layer, by its name in the layer, to its (outputs, inputs)."""
    q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    return {
        "self_attn.q_proj.weight": (q, a.hidden),
        "self_attn.k_proj.weight": (kv, a.hidden),
        "self_attn.v_proj.weight": (kv, a.hidden),
        "self_attn.o_proj.weight": (a.hidden, q),
        "mlp.gate_proj.weight": (a.intermediate, a.hidden),
        "mlp.up_proj.weight": (a.intermediate, a.hidden),
        "mlp.down_proj.weight": (a.hidden, a.intermediate),
    }


def parameter_count(architecture: Architecture) -> int:
    """Count the parameters of the unquantised model."""
    total = 0
    for spec in expected_tensors(architecture):
        size = 1
        for extent in spec.shape:
            size *= extent
        total += size
    return total


def _linear(
    name: str, outputs: int, inputs: int, quantization: Quantization | None, module: Module, layer: int | None
) -> list[TensorSpec]:
    def one(suffix: str, shape: tuple[int, ...], *dtypes: str) -> TensorSpec:
        return TensorSpec(name=name + suffix, shape=shape, dtypes=dtypes, module=module, layer=layer)

    if quantization is None:
        return [one("", (outputs, inputs), *FLOATS)]
    if quantization.format is WeightFormat.INT8:
        return [one(".q", (outputs, inputs), "I8"), one(".scale", (outputs, 1), "F16")]
    groups = inputs // quantization.group
    return [
        one(".q", (outputs, inputs // 2), "U8"),
        one(".scale", (outputs, groups), "F16"),
        one(".zp", (outputs * groups // 2,), "U8"),
    ]
