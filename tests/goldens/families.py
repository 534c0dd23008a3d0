"""Which checkpoints and prompts are held against `transformers`?

Every family, every stored float type, one file and several, tied and untied. Tiny, but with every trait that changes
the arithmetic: grouped queries, a head width that is not hidden / heads, windows shorter than the prompt.
"""

from typing import Any, NamedTuple

VOCAB = 256
PROMPT_TOKENS = (5, 37, 70)
"""Lengths of the three prompts of each case: below a KV block, above one, above two."""
NEW_TOKENS = 12


class Case(NamedTuple):
    """One seeded checkpoint."""

    name: str
    config: dict[str, Any]
    seed: int
    dtype: str = "F32"
    shards: int = 1


def _config(architecture: str, **more: Any) -> dict[str, Any]:
    sizes = {
        "architectures": [architecture], "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCAB,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    kind = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral", "Qwen2ForCausalLM": "qwen2"}
    return {**sizes, "model_type": kind.get(architecture, "qwen3"), **more}


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

CASES = (
    Case("llama", _config("LlamaForCausalLM"), 1),
    Case("llama-bf16", _config("LlamaForCausalLM"), 2, "BF16"),
    Case("llama-f16", _config("LlamaForCausalLM"), 3, "F16"),
    Case("llama-sharded", _config("LlamaForCausalLM", num_key_value_heads=4), 4, "BF16", 3),
    Case("llama3-rope", _config("LlamaForCausalLM", rope_scaling=LLAMA3_ROPE, rope_theta=500000.0), 5),
    Case(
        "llama3-rope-parameters",
        _config("LlamaForCausalLM", rope_parameters={**LLAMA3_ROPE, "rope_theta": 500000.0}, rope_theta=None),
        6,
    ),
    Case("mistral-window", _config("MistralForCausalLM", sliding_window=24, head_dim=32), 7),
    Case("mistral-full", _config("MistralForCausalLM", sliding_window=None), 8, "BF16"),
    Case("qwen2", _config("Qwen2ForCausalLM", rms_norm_eps=1e-6), 9),
    Case("qwen2-tied", _config("Qwen2ForCausalLM", tie_word_embeddings=True), 10, "BF16"),
    Case(
        "qwen2-window",
        _config("Qwen2ForCausalLM", use_sliding_window=True, sliding_window=20, max_window_layers=1),
        11,
    ),
    Case("qwen3", _config("Qwen3ForCausalLM", head_dim=32, attention_bias=False), 12),
    Case("qwen3-tied", _config("Qwen3ForCausalLM", head_dim=32, tie_word_embeddings=True), 13, "F16"),
)


def prompt(case: Case, tokens: int) -> list[int]:
    """Return a fixed prompt of ids 3 <= id < VOCAB."""
    return [
        3 + (case.seed * 7919 + tokens * 104729 + place * place * 31 + place * 17) % (VOCAB - 3)
        for place in range(tokens)
    ]
