import json
import resource
from pathlib import Path

import numpy as np
import pytest
from goldens.dequantize import dequantized
from goldens.families import CASES
from goldens.seeded import seeded_checkpoint
from hypothesis import given
from hypothesis import strategies as st

from llmhostd.checkpoints.tensors import EMBEDDING, expected_tensors
from llmhostd.domain.errors import CheckpointError, OperatorError
from llmhostd.domain.model import WeightFormat
from llmhostd.loader.convert import convert
from llmhostd.loader.quantize import floats
from llmhostd.loader.rounding import groups_u4, rows_i8
from llmhostd.loader.safetensors import open_checkpoint
from llmhostd.loader.source import Source

BY_NAME = {case.name: case for case in CASES}


@pytest.mark.parametrize("name", ["llama", "llama-sharded", "qwen2-tied", "qwen3"])
@pytest.mark.parametrize("kind", [WeightFormat.INT8, WeightFormat.INT4])
def test_every_weight_is_within_half_a_step(tmp_path: Path, name: str, kind: WeightFormat) -> None:
    case = BY_NAME[name]
    source = seeded_checkpoint(tmp_path / "source", case.config, case.seed, case.dtype, case.shards)
    heard: list[tuple[int, int]] = []
    convert(source, tmp_path / "small", kind, lambda done, total: heard.append((done, total)))
    before, after = open_checkpoint(source), open_checkpoint(tmp_path / "small")
    assert after.weights is kind
    assert heard[-1][0] == heard[-1][1] >= after.description.weight_bytes
    with Source(source) as opened:
        for spec in expected_tensors(before.architecture):
            exact = floats(opened, spec.name, slice(None))
            near, half_step = dequantized(after, spec.name)
            assert np.all(np.abs(near - exact) <= half_step), spec.name
    assert after.dtype(EMBEDDING) == "BF16"
    assert ("lm_head.weight.q" in after) == (not before.architecture.tied_embeddings)


def test_companions_are_copied(tmp_path: Path) -> None:
    case = BY_NAME["llama-sharded"]
    source = seeded_checkpoint(tmp_path / "source", case.config, case.seed, case.dtype, case.shards)
    for name in ("tokenizer.json", "chat_template.jinja", "generation_config.json", "notes.bin"):
        (source / name).write_text("{}")
    convert(source, tmp_path / "small", WeightFormat.INT8)
    names = {file.name for file in (tmp_path / "small").iterdir()}
    assert names == {
        "config.json", "weights.llmhostd", "weights.llmhostd.json", "tokenizer.json", "chat_template.jinja",
        "generation_config.json",
    }  # fmt: skip


def test_nothing_is_left_behind_by_a_failure(tmp_path: Path) -> None:
    case = BY_NAME["llama"]
    source = seeded_checkpoint(tmp_path / "source", case.config, case.seed)
    file = source / "model.safetensors"
    damaged = bytearray(file.read_bytes())
    damaged[-4:] = np.float32("nan").tobytes()
    file.write_bytes(damaged)
    with pytest.raises(CheckpointError, match=r"tensor `lm_head\.weight` holds values that are not finite"):
        convert(source, tmp_path / "small", WeightFormat.INT8)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["source"]


def test_a_full_disk_is_the_operators_error(tmp_path: Path) -> None:
    case = BY_NAME["llama"]
    source = seeded_checkpoint(tmp_path / "source", case.config, case.seed)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, hard))
    try:
        with pytest.raises(OperatorError, match="cannot be written: File too large"):
            convert(source, tmp_path / "small", WeightFormat.INT8)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["source"]


def test_what_cannot_be_quantised_is_said(tmp_path: Path) -> None:
    case = BY_NAME["llama"]
    source = seeded_checkpoint(tmp_path / "source", case.config, case.seed)
    convert(source, tmp_path / "small", WeightFormat.INT8)
    with pytest.raises(OperatorError, match="exists already"):
        convert(source, tmp_path / "small", WeightFormat.INT4)
    with pytest.raises(CheckpointError, match="is quantised already"):
        convert(tmp_path / "small", tmp_path / "smaller", WeightFormat.INT4)
    with pytest.raises(OperatorError, match="known: int8, int4"):
        convert(source, tmp_path / "other", WeightFormat.F16)
    narrow = seeded_checkpoint(tmp_path / "narrow", {**case.config, "intermediate_size": 72}, 1)
    with pytest.raises(CheckpointError, match="int4 needs layer widths that 32 divides"):
        convert(narrow, tmp_path / "other", WeightFormat.INT4)


def test_a_wrong_zero_point_size_is_refused(tmp_path: Path) -> None:
    case = BY_NAME["llama"]
    source = seeded_checkpoint(tmp_path / "source", case.config, case.seed)
    convert(source, tmp_path / "small", WeightFormat.INT4)
    config_file = tmp_path / "small" / "config.json"
    config = json.loads(config_file.read_text())
    assert config["quantization_config"]["group"] == 64
    config["quantization_config"]["group"] = 32
    config_file.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"q_proj\.weight\.scale` has shape \[64, 1\]"):
        open_checkpoint(tmp_path / "small")


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=64, max_size=64), st.floats(-6, 1))
def test_rounding_properties(values: list[float], exponent: float) -> None:
    weights = (np.array(values, np.float32) * np.float32(10.0**exponent)).reshape(2, 32)
    rounded, scale = rows_i8(weights)
    wide = scale.astype(np.float32)
    # A scale rounded to f16 may fall short of the extreme by its own rounding, besides half a step.
    slack = 127 * np.maximum(wide * 2.0**-11, 6e-8)
    assert np.all(np.abs(rounded * wide - weights) <= wide / 2 + slack)
    packed, group_scale, zero = groups_u4(weights, 32)
    low, high = packed & 15, packed >> 4
    nibbles = np.stack([low, high], -1).reshape(2, 32).astype(np.float32)
    zeros = np.array([zero[0] & 15, zero[0] >> 4], np.float32).reshape(2, 1)
    step = group_scale.astype(np.float32)
    slack = 15 * np.maximum(step * 2.0**-11, 6e-8)
    # Both the value and the zero point are rounded: a whole step in all.
    assert np.all(np.abs((nibbles - zeros) * step - weights) <= step + slack)
