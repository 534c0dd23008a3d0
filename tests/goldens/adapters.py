"""Adapters in PEFT's format, made from a seed as `goldens.seeded` makes checkpoints; and bases with one merged in.

The merge is written from the definition of LoRA, W + scale * B A, in double precision, tensor by tensor.
"""

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from goldens.seeded import seeded_values

from llmhostd.checkpoints.architecture import parse_architecture
from llmhostd.checkpoints.tensors import expected_tensors, linear_shapes
from llmhostd.domain.model import Architecture
from llmhostd.loader.header import read_header
from llmhostd.loader.safetensors_writer import PlannedTensor, stored, write_safetensors

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj")


def adapter_config(rank: int = 4, alpha: float = 8, targets: tuple[str, ...] = ALL, **more: Any) -> dict[str, Any]:
    """What `peft` writes for plain LoRA, with its neutral fields."""
    return {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "someone/base", "auto_mapping": None,
        "r": rank, "lora_alpha": alpha, "lora_dropout": 0.05, "target_modules": list(targets), "bias": "none",
        "fan_in_fan_out": False, "inference_mode": True, "init_lora_weights": True, "layers_pattern": None,
        "layers_to_transform": None, "modules_to_save": None, "rank_pattern": {}, "alpha_pattern": {},
        "use_rslora": False, "use_dora": False, "loftq_config": {}, "megatron_config": None,
        "megatron_core": "megatron.core", "layer_replication": None, "revision": None, **more,
    }  # fmt: skip


def factor_shapes(config: dict[str, Any], base: Architecture) -> dict[str, tuple[int, int]]:
    """Shapes of an adapter's tensors by `peft`'s names; patterns are plain ends of names."""
    shapes = {}
    layers = config["layers_to_transform"]
    for layer in range(base.layers):
        for weight, (outputs, inputs) in linear_shapes(base).items():
            name = f"model.layers.{layer}.{weight.removesuffix('.weight')}"
            if name.rpartition(".")[2] not in config["target_modules"] or (layers is not None and layer not in layers):
                continue
            rank = next((r for end, r in config["rank_pattern"].items() if name.endswith(end)), config["r"])
            shapes[f"base_model.model.{name}.lora_A.weight"] = (rank, inputs)
            shapes[f"base_model.model.{name}.lora_B.weight"] = (outputs, rank)
    return shapes


def seeded_factors(config: dict[str, Any], base: Architecture, seed: int) -> dict[str, np.ndarray]:
    """Values large enough that an adapter changes what a model says."""
    rng = np.random.Generator(np.random.Philox(key=[seed, 77]))
    return {
        name: (rng.random(shape) * 2 - 1).astype(np.float32) * (1.0 if "lora_A" in name else 0.5) * shape[1] ** -0.5
        for name, shape in factor_shapes(config, base).items()
    }


def seeded_adapter(
    path: Path, base: dict[str, Any], seed: int, dtype: str = "F32", config: dict[str, Any] | None = None
) -> Path:
    """Write an adapter for a base with the config.json `base`. Returns `path`."""
    config = adapter_config() if config is None else config
    factors = seeded_factors(config, parse_architecture(base), seed)
    return write_adapter(path, config, factors, dtype)


def write_adapter(path: Path, config: dict[str, Any], factors: dict[str, np.ndarray], dtype: str = "F32") -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "adapter_config.json").write_text(json.dumps(config))
    planned = [_planned(name, values, dtype) for name, values in factors.items()]
    write_safetensors(path / "adapter_model.safetensors", planned)
    return path


def merged_checkpoint(path: Path, base: dict[str, Any], seed: int, config: dict[str, Any], adapter_seed: int) -> Path:
    """Write the F32 checkpoint of `base` and `seed` with an F32 adapter merged into its weights. Returns `path`."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(base))
    architecture = parse_architecture(base)
    factors = seeded_factors(config, architecture, adapter_seed)
    planned = []
    for place, spec in enumerate(expected_tensors(architecture)):
        values = seeded_values(spec, seed, place).astype(np.float64)
        name = spec.name.removesuffix(".weight")
        low = factors.get(f"base_model.model.{name}.lora_A.weight")
        if low is not None:
            high = factors[f"base_model.model.{name}.lora_B.weight"]
            values += _scale(config, name, len(low)) * (high.astype(np.float64) @ low.astype(np.float64))
        planned.append(_planned(spec.name, values.astype(np.float32), "F32"))
    write_safetensors(path / "model.safetensors", planned)
    return path


def _scale(config: dict[str, Any], name: str, rank: int) -> float:
    alpha = next((a for end, a in config["alpha_pattern"].items() if name.endswith(end)), config["lora_alpha"])
    return alpha / math.sqrt(rank) if config["use_rslora"] else alpha / rank


def _planned(name: str, values: np.ndarray, dtype: str) -> PlannedTensor:
    def pieces() -> Iterator[np.ndarray]:
        yield stored(values, dtype)

    return PlannedTensor(name, dtype, values.shape, pieces)


def merged_into(path: Path, base: Path, config: dict[str, Any], adapter_seed: int) -> Path:
    """Write a copy of an F32 checkpoint with an F32 adapter merged into its weights, tokenizer included."""
    shutil.copytree(base, path)
    factors = seeded_factors(config, parse_architecture(json.loads((base / "config.json").read_text())), adapter_seed)
    (file,) = base.glob("*.safetensors")
    planned = []
    for name, place in read_header(file).items():
        values = np.fromfile(file, np.float32, (place.end - place.begin) // 4, offset=place.begin).reshape(place.shape)
        stem = f"base_model.model.{name.removesuffix('.weight')}"
        low, high = factors.get(f"{stem}.lora_A.weight"), factors.get(f"{stem}.lora_B.weight")
        if low is not None and high is not None:
            update = high.astype(np.float64) @ low.astype(np.float64)
            values = (values + _scale(config, name.removesuffix(".weight"), len(low)) * update).astype(np.float32)
        planned.append(_planned(name, values, "F32"))
    write_safetensors(path / file.name, planned)
    return path
