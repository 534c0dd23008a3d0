"""What transformer does a config.json describe?

Follows what the `transformers` library computes for each architecture, field by field, and refuses what that library
would compute and we do not: a model that runs is the model that was trained.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from llmhostd.checkpoints.fields import ConfigFields
from llmhostd.domain.model import Architecture, RopeScaling

FAMILIES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""`architectures[0]` of config.json -> family."""

_MOST_LAYERS = 1000
"""Bounds the work that a broken or hostile config.json can cause."""
_QWEN3_HEAD_DIM = 128
_QWEN_WINDOW_TOKENS = 4096
_QWEN_FIRST_WINDOW_LAYER = 28
_ROPE_THETA = 10_000.0


def parse_architecture(config: Mapping[str, Any], where: str = "config.json") -> Architecture:
    """Read the parsed config.json of a checkpoint. `where` is its path, for errors.

    Raises CheckpointError naming the file and the field.
    """
    fields = ConfigFields(config, where)
    family = _family(fields)
    _refuse_what_is_not_computed(fields, family)
    layers, hidden = fields.positive_int("num_hidden_layers"), fields.positive_int("hidden_size")
    if layers > _MOST_LAYERS:
        raise fields.wrong("num_hidden_layers", f"is {layers}; at most {_MOST_LAYERS} are read")
    heads, kv_heads, head_dim = _attention(fields, family, hidden)
    vocab = fields.positive_int("vocab_size")
    theta, scaling = _rope(fields)
    window, from_layer = _sliding_window(fields, family, layers)
    bos = fields.token_ids("bos_token_id", vocab)
    return Architecture(
        family=family,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=fields.positive_int("intermediate_size"),
        vocab=vocab,
        max_context_tokens=fields.positive_int("max_position_embeddings"),
        norm_eps=fields.positive_float("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        sliding_window_tokens=window,
        sliding_from_layer=from_layer,
        tied_embeddings=fields.flag("tie_word_embeddings", default=False),
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=fields.token_ids("eos_token_id", vocab),
    )


def _family(fields: ConfigFields) -> str:
    names = fields.texts("architectures")
    known = ", ".join(FAMILIES)
    if not names:
        raise fields.wrong("architectures", f"is missing or empty; known: {known}")
    family = FAMILIES.get(names[0])
    if family is None:
        near = get_close_matches(names[0], FAMILIES, n=1, cutoff=0.0)[0]
        raise fields.wrong("architectures", f"names {names[0]!r}, which is not known; known: {known}; nearest: {near}")
    return family


def _refuse_what_is_not_computed(fields: ConfigFields, family: str) -> None:
    activation = fields.text("hidden_act", "silu")
    if activation != "silu":
        raise fields.wrong("hidden_act", f"is {activation!r}; only 'silu' is computed")
    for flag in ("attention_bias", "mlp_bias"):
        if family in ("llama", "qwen3") and fields.flag(flag, default=False):
            raise fields.wrong(flag, f"is true; {family} checkpoints with this bias are not supported")


def _attention(fields: ConfigFields, family: str, hidden: int) -> tuple[int, int, int]:
    """Return heads, key-value heads and the width of a head."""
    heads = fields.positive_int("num_attention_heads")
    kv_heads = fields.positive_int("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fields.wrong("num_key_value_heads", f"is {kv_heads}, which does not divide num_attention_heads {heads}")
    if not fields.has("head_dim") and family != "qwen3" and hidden % heads:
        raise fields.wrong("num_attention_heads", f"is {heads}, which does not divide hidden_size {hidden}")
    head_dim = fields.positive_int("head_dim", _QWEN3_HEAD_DIM if family == "qwen3" else max(hidden // heads, 1))
    if head_dim % 2:
        raise fields.wrong("head_dim", f"is {head_dim}; rotary embedding needs an even number")
    return heads, kv_heads, head_dim


def _rope(fields: ConfigFields) -> tuple[float, RopeScaling | None]:
    """Read `rope_theta` + `rope_scaling`, or `rope_parameters`, which holds both (transformers 5)."""
    section = fields.section("rope_parameters") or fields.section("rope_scaling")
    top = fields.positive_float("rope_theta", _ROPE_THETA)
    if section is None:
        return top, None
    theta = section.positive_float("rope_theta", top)
    kind_field = "type" if section.has("type") and not section.has("rope_type") else "rope_type"
    kind = section.text(kind_field, "default")
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise section.wrong(kind_field, f"is {kind!r}; known: 'default', 'llama3'")
    low, high = section.positive_float("low_freq_factor"), section.positive_float("high_freq_factor")
    if high <= low:
        raise section.wrong("high_freq_factor", f"is {high}, not above low_freq_factor {low}")
    scaling = RopeScaling(
        factor=section.positive_float("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_tokens=section.positive_int("original_max_position_embeddings"),
    )
    return theta, scaling


def _sliding_window(fields: ConfigFields, family: str, layers: int) -> tuple[int | None, int]:
    """Return the window and the first layer that uses it."""
    if family == "llama":
        return None, 0
    if family == "mistral":
        return (fields.positive_int("sliding_window"), 0) if fields.has("sliding_window") else (None, 0)
    if not fields.flag("use_sliding_window", default=False):
        return None, 0
    window = fields.positive_int("sliding_window", _QWEN_WINDOW_TOKENS)
    first = _first_window_layer(fields, layers)
    return (window, first) if first < layers else (None, 0)


def _first_window_layer(fields: ConfigFields, layers: int) -> int:
    kinds = fields.texts("layer_types")
    if not kinds:
        return fields.index("max_window_layers", _QWEN_FIRST_WINDOW_LAYER)
    if len(kinds) != layers:
        raise fields.wrong("layer_types", f"has {len(kinds)} entries for {layers} layers")
    first = kinds.index("sliding_attention") if "sliding_attention" in kinds else layers
    expected = ("full_attention",) * first + ("sliding_attention",) * (layers - first)
    if kinds != expected:
        raise fields.wrong("layer_types", "must be full_attention layers followed by sliding_attention layers")
    return first
