"""How is a checkpoint of any shape made from a seed?

Its words are noise; its shape, its numerics and its cost are those of a real model. Each tensor draws from a stream of
its own, named by (seed, tensor name), so the same call makes the same bytes.
"""

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from llmhostd.checkpoints.architecture import FAMILIES
from llmhostd.checkpoints.tensors import EMBEDDING, TensorSpec, expected_tensors
from llmhostd.demo.config_json import config_json
from llmhostd.demo.vocabulary import BOS_ID, EOS_ID, write_tokenizer
from llmhostd.domain.errors import CallerError
from llmhostd.domain.model import Architecture, RopeScaling, WeightFormat
from llmhostd.loader.safetensors_writer import PlannedTensor, stored, write_safetensors

STORED = {WeightFormat.F32: "F32", WeightFormat.F16: "F16", WeightFormat.BF16: "BF16"}
CONFIG_DTYPES = {WeightFormat.F32: "float32", WeightFormat.F16: "float16", WeightFormat.BF16: "bfloat16"}
_PIECE_ELEMENTS = 1 << 20
_NORM_SPREAD = 0.1


def noise_architecture(
    family: str,
    *,
    layers: int = 8,
    hidden: int = 1024,
    heads: int = 16,
    kv_heads: int = 4,
    head_dim: int | None = None,
    intermediate: int = 2816,
    vocab: int = 32000,
    max_context_tokens: int = 8192,
    rope_theta: float = 10000.0,
    rope_scaling: RopeScaling | None = None,
    sliding_window_tokens: int | None = None,
    tied_embeddings: bool = False,
) -> Architecture:
    """An architecture with the family's own traits (Qwen2: QKV bias; Qwen3: q/k norm). The defaults have 156M."""
    if family not in FAMILIES.values():
        raise CallerError(f"no model family {family!r}; known: {', '.join(FAMILIES.values())}", field="family")
    return Architecture(
        family=family,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim or hidden // heads,
        intermediate=intermediate,
        vocab=vocab,
        max_context_tokens=max_context_tokens,
        norm_eps=1e-5,
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        sliding_window_tokens=sliding_window_tokens,
        tied_embeddings=tied_embeddings,
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        bos_token_id=BOS_ID,
        eos_token_ids=(EOS_ID,),
    )


def make_checkpoint(
    directory: Path,
    architecture: Architecture,
    *,
    seed: int = 0,
    weights: WeightFormat = WeightFormat.BF16,
    tokenizer: Tokenizer | None = None,
    written: Callable[[int], None] | None = None,
) -> Path:
    """Write config.json, model.safetensors and, if given, the tokenizer into `directory` (made if missing).

    `weights` is F32, F16 or BF16. `written` hears the bytes of each piece. Returns `directory`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(config_json(architecture, CONFIG_DTYPES[weights]))
    if tokenizer is not None:
        write_tokenizer(tokenizer, directory, max_context_tokens=architecture.max_context_tokens)
    dtype = STORED[weights]
    tensors = [
        PlannedTensor(spec.name, dtype, spec.shape, _noise(spec, architecture, seed, dtype))
        for spec in expected_tensors(architecture)
    ]
    write_safetensors(directory / "model.safetensors", tensors, written=written)
    return directory


def _noise(
    spec: TensorSpec, architecture: Architecture, seed: int, dtype: str
) -> Callable[[], Iterator[npt.NDArray[np.generic]]]:
    """Normal values whose spread keeps activations near 1, whatever the sizes: linears by their inputs."""
    mean, deviation = 0.0, spec.shape[-1] ** -0.5
    if spec.name.endswith("norm.weight"):
        mean, deviation = 1.0, _NORM_SPREAD
    elif spec.name.endswith(".bias"):
        deviation = 0.1
    elif spec.name == EMBEDDING and not architecture.tied_embeddings:
        deviation = 1.0

    def pieces() -> Iterator[npt.NDArray[np.generic]]:
        stream = np.random.Generator(np.random.SFC64([seed, zlib.crc32(spec.name.encode())]))
        left = int(np.prod(spec.shape))
        while left > 0:
            values = stream.standard_normal(min(left, _PIECE_ELEMENTS), dtype=np.float32)
            values *= np.float32(deviation)
            values += np.float32(mean)
            yield stored(values, dtype)
            left -= len(values)

    return pieces
