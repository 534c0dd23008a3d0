"""What config.json describes an architecture? The inverse of `checkpoints.architecture.parse_architecture`."""

import json

from llmhostd.checkpoints.architecture import FAMILIES
from llmhostd.domain.model import Architecture

_CLASSES = {family: name for name, family in FAMILIES.items()}


def config_json(architecture: Architecture, dtype: str) -> str:
    """Return the text of config.json for weights stored in `dtype` (`float32`, `float16` or `bfloat16`)."""
    a = architecture
    config: dict[str, object] = {
        "architectures": [_CLASSES[a.family]],
        "model_type": a.family,
        "vocab_size": a.vocab,
        "hidden_size": a.hidden,
        "intermediate_size": a.intermediate,
        "num_hidden_layers": a.layers,
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads,
        "head_dim": a.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": a.max_context_tokens,
        "rms_norm_eps": a.norm_eps,
        "rope_theta": a.rope_theta,
        "rope_scaling": _rope_scaling(a),
        "tie_word_embeddings": a.tied_embeddings,
        "bos_token_id": a.bos_token_id,
        "eos_token_id": list(a.eos_token_ids),
        "torch_dtype": dtype,
    }
    return json.dumps(config | _sliding_window(a), indent=2) + "\n"


def _rope_scaling(a: Architecture) -> dict[str, object] | None:
    if a.rope_scaling is None:
        return None
    return {
        "rope_type": "llama3",
        "factor": a.rope_scaling.factor,
        "low_freq_factor": a.rope_scaling.low_freq_factor,
        "high_freq_factor": a.rope_scaling.high_freq_factor,
        "original_max_position_embeddings": a.rope_scaling.original_max_position_tokens,
    }


def _sliding_window(a: Architecture) -> dict[str, object]:
    if a.family == "llama":
        return {}
    if a.family == "mistral":
        return {"sliding_window": a.sliding_window_tokens}
    return {
        "use_sliding_window": a.sliding_window_tokens is not None,
        "sliding_window": a.sliding_window_tokens,
        "max_window_layers": a.sliding_from_layer,
    }
