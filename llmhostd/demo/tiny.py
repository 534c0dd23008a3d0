"""Which models are small enough to be made and run in milliseconds? One of every family and trait, for tests."""

from pathlib import Path

from llmhostd.demo.noise import make_checkpoint, noise_architecture
from llmhostd.demo.vocabulary import train_tokenizer
from llmhostd.domain.model import Architecture, RopeScaling, WeightFormat

_VOCAB = 320
_TEXT = """
A small model knows few words, and it says them in any order. The words are noise, but they are always the same noise:
one seed, one text. Whoever reads them should not look for a meaning there. What matters is that each part of the
machine sees tokens of several bytes, words that begin with a space, numbers such as 10 and 32, and a few marks; and
that the whole thing is made again in a moment, wherever the tests are run and whatever else is installed.
"""


def _tiny(family: str, **traits: object) -> Architecture:
    sizes: dict[str, object] = {
        "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "intermediate": 128, "vocab": _VOCAB,
        "max_context_tokens": 512,
    }  # fmt: skip
    return noise_architecture(family, **(sizes | traits))  # type: ignore[arg-type]


_LLAMA3_ROPE = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_tokens=128)
TINY_MODELS: dict[str, tuple[Architecture, WeightFormat]] = {
    "tiny-llama": (_tiny("llama"), WeightFormat.F32),
    "tiny-llama-bf16": (_tiny("llama"), WeightFormat.BF16),
    "tiny-llama3": (_tiny("llama", rope_theta=500000.0, rope_scaling=_LLAMA3_ROPE), WeightFormat.F32),
    "tiny-mistral": (_tiny("mistral", sliding_window_tokens=48), WeightFormat.F32),
    "tiny-mistral-bf16": (_tiny("mistral", head_dim=32), WeightFormat.BF16),
    "tiny-qwen2": (_tiny("qwen2", tied_embeddings=True), WeightFormat.F32),
    "tiny-qwen2-bf16": (_tiny("qwen2"), WeightFormat.BF16),
    "tiny-qwen3": (_tiny("qwen3", head_dim=32), WeightFormat.F32),
    "tiny-qwen3-bf16": (_tiny("qwen3", tied_embeddings=True), WeightFormat.BF16),
}
"""Name -> architecture and stored precision. All share one byte-level tokenizer of `_VOCAB` tokens."""


def make_tiny_models(directory: Path) -> dict[str, Path]:
    """Write every tiny model under `directory`; the same bytes every time. Returns name -> checkpoint directory."""
    tokenizer = train_tokenizer([_TEXT], _VOCAB)
    return {
        name: make_checkpoint(directory / name, architecture, seed=number, weights=weights, tokenizer=tokenizer)
        for number, (name, (architecture, weights)) in enumerate(TINY_MODELS.items())
    }
