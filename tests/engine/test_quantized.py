from pathlib import Path

import numpy as np
import pytest
from goldens.dequantize import dequantized
from goldens.families import CASES, prompt

from llmhostd.checkpoints.tensors import expected_tensors
from llmhostd.domain.model import ComputePrecision, KvPrecision, WeightFormat
from llmhostd.engines.paged_contexts import PagedContexts
from llmhostd.loader.convert import convert
from llmhostd.loader.safetensors import open_checkpoint
from llmhostd.loader.safetensors_writer import PlannedTensor, write_safetensors


def reference(small: Path, config: Path, directory: Path) -> Path:
    """Write what the quantised weights stand for as a plain f32 checkpoint."""
    checkpoint = open_checkpoint(small)
    directory.mkdir()
    (directory / "config.json").write_bytes(config.read_bytes())
    tensors = [
        PlannedTensor(spec.name, "F32", spec.shape, lambda name=spec.name: iter([dequantized(checkpoint, name)[0]]))
        for spec in expected_tensors(checkpoint.architecture)
    ]
    write_safetensors(directory / "model.safetensors", tensors)
    return directory


@pytest.mark.parametrize("name", ["llama", "mistral-full", "qwen2-tied", "qwen3"])
@pytest.mark.parametrize("kind", [WeightFormat.INT8, WeightFormat.INT4])
def test_quantised_weights_compute_what_they_stand_for(
    load, checkpoint_of, tmp_path: Path, name: str, kind: WeightFormat
) -> None:
    """Activations are quantised too (or rounded to bf16): root mean square error within 4% of the logits' spread."""
    case = next(case for case in CASES if case.name == name)
    convert(checkpoint_of(name), tmp_path / "small", kind)
    plain = reference(tmp_path / "small", checkpoint_of(name) / "config.json", tmp_path / "plain")
    _, expected = PagedContexts([load(plain)], kv_blocks=8).greedy(prompt(case, 70), 1)
    for compute, kv in (
        (ComputePrecision.F32, KvPrecision.F32),
        (ComputePrecision.F32, KvPrecision.U8),
        (ComputePrecision.BF16, KvPrecision.U8),
    ):
        instance = load(tmp_path / "small", compute, kv)
        assert instance.shape.weights is kind
        _, logits = PagedContexts([instance], kv_blocks=8).greedy(prompt(case, 70), 1, chunk=32)
        assert np.sqrt(((logits - expected) ** 2).mean()) <= 0.04 * expected.std()
