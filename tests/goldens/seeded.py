"""How can a checkpoint be the same everywhere without being stored?

`seeded_checkpoint` writes a tiny checkpoint from a seed: raw Philox words (a stream that numpy guarantees) mapped to
uniform values, so that `make_goldens.py` and the tests, on any machine and numpy, hold the same weights.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from llmhostd.checkpoints.architecture import parse_architecture
from llmhostd.checkpoints.tensors import EMBEDDING, TensorSpec, expected_tensors
from llmhostd.loader.safetensors_writer import PlannedTensor, stored, write_safetensors


def seeded_checkpoint(path: Path, config: dict[str, Any], seed: int, dtype: str = "F32", shards: int = 1) -> Path:
    """Write config.json and safetensors file(s) under `path`. `dtype`: F32, F16 or BF16. Returns `path`."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    specs = expected_tensors(parse_architecture(config))
    planned = [_planned(spec, seed, place, dtype) for place, spec in enumerate(specs)]
    if shards == 1:
        write_safetensors(path / "model.safetensors", planned)
        return path
    weight_map = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = planned[shard::shards]
        write_safetensors(path / name, part)
        weight_map |= {tensor.name: name for tensor in part}
    index = {"metadata": {"total_size": sum(one.stored_bytes for one in planned)}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


def seeded_values(spec: TensorSpec, seed: int, place: int) -> np.ndarray:
    """Uniform float32 values with the spread that keeps activations near 1: norms around 1, linears by their inputs."""
    words = np.random.Philox(key=[seed, place]).random_raw(int(np.prod(spec.shape)))
    uniform = (words >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0  # [-1, 1), standard deviation 3 ** -0.5
    if spec.name.endswith("norm.weight"):
        values = 1.0 + 0.3 * uniform
    elif spec.name.endswith(".bias"):
        values = 0.5 * uniform
    elif spec.name == EMBEDDING:
        values = 1.7 * uniform
    else:
        values = 1.7 * 1.4 * uniform * spec.shape[-1] ** -0.5
    return values.reshape(spec.shape).astype(np.float32)


def _planned(spec: TensorSpec, seed: int, place: int, dtype: str) -> PlannedTensor:
    def pieces() -> Iterator[np.ndarray]:
        yield stored(seeded_values(spec, seed, place), dtype)

    return PlannedTensor(spec.name, dtype, spec.shape, pieces)
