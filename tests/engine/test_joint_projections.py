"""Queries, keys and values by one product, where their weights lie one behind another."""

from pathlib import Path

import numpy as np
import pytest

from llmhostd.demo.noise import make_checkpoint, noise_architecture
from llmhostd.domain.model import WeightFormat
from llmhostd.engines.paged_contexts import PagedContexts
from llmhostd.loader.safetensors import SINGLE_FILE, open_checkpoint
from llmhostd.loader.safetensors_writer import PlannedTensor, write_safetensors

NAMES = [f"model.layers.1.self_attn.{which}_proj.weight" for which in "qkv"]


def in_reverse(checkpoint: Path, destination: Path) -> Path:
    """The same tensors, the last of them first."""
    destination.mkdir()
    for file in checkpoint.iterdir():
        if file.name != SINGLE_FILE:
            (destination / file.name).write_bytes(file.read_bytes())
    opened = open_checkpoint(checkpoint)
    tensors = [
        PlannedTensor(name, place.dtype, place.shape, lambda name=name: iter([opened.array(name)]))
        for name, place in opened.description.tensors.items()
    ]
    write_safetensors(destination / SINGLE_FILE, tensors[::-1])
    return destination


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_one_product_computes_what_three_do(family: str, load, tmp_path: Path) -> None:
    sizes = {"layers": 3, "hidden": 128, "intermediate": 256, "vocab": 500, "heads": 4, "kv_heads": 2}
    architecture = noise_architecture(family, **sizes)
    ordered = make_checkpoint(tmp_path / "ordered", architecture, weights=WeightFormat.BF16)
    reverse = in_reverse(ordered, tmp_path / "reverse")
    joint = open_checkpoint(ordered).rows(NAMES)
    assert joint is not None
    assert np.array_equal(joint, np.concatenate([open_checkpoint(ordered).array(name) for name in NAMES]))
    assert open_checkpoint(reverse).rows(NAMES) is None
    tokens = [3 + place * 7 % 400 for place in range(70)]
    one, three = (PagedContexts([load(path)], kv_blocks=8).greedy(tokens, 8) for path in (ordered, reverse))
    assert one[0] == three[0]
    assert np.abs(one[1] - three[1]).max() <= 1e-4
