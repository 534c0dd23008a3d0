import json
import os
from pathlib import Path

import numpy as np
import pytest
from goldens.families import CASES, Case
from goldens.seeded import seeded_checkpoint, seeded_values

from llmhostd.checkpoints.tensors import expected_tensors
from llmhostd.domain.errors import CheckpointError
from llmhostd.domain.model import ComputePrecision, KvPrecision, WeightFormat
from llmhostd.loader.quantize import floats
from llmhostd.loader.safetensors import describe, open_checkpoint
from llmhostd.loader.source import Source

BY_NAME = {case.name: case for case in CASES}


def make(path: Path, case: Case) -> Path:
    return seeded_checkpoint(path / case.name, case.config, case.seed, case.dtype, case.shards)


@pytest.mark.parametrize("name", ["llama", "llama-bf16", "llama-f16", "llama-sharded", "qwen2-tied"])
def test_arrays_are_what_was_written(tmp_path: Path, name: str) -> None:
    case = BY_NAME[name]
    checkpoint = open_checkpoint(make(tmp_path, case))
    tolerance = {"F32": 0.0, "F16": 1e-3, "BF16": 8e-3}[case.dtype]
    with Source(checkpoint.path) as source:
        for spec in expected_tensors(checkpoint.architecture):
            np.testing.assert_array_equal(source.rows(spec.name, slice(None)), checkpoint.array(spec.name))
        read = {spec.name: floats(source, spec.name, slice(None)) for spec in expected_tensors(checkpoint.architecture)}
    for place, spec in enumerate(expected_tensors(checkpoint.architecture)):
        expected = seeded_values(spec, case.seed, place)
        np.testing.assert_allclose(read[spec.name], expected, rtol=tolerance, atol=tolerance * 1e-2)
        assert not checkpoint.array(spec.name).flags.owndata
        assert not checkpoint.array(spec.name).flags.writeable


def test_description_counts_what_is_used(tmp_path: Path) -> None:
    path = make(tmp_path, BY_NAME["llama-sharded"])
    described = describe(path)
    assert described.weights is WeightFormat.BF16
    assert described.weight_bytes == 2 * described.parameters
    shape = described.shape(ComputePrecision.BF16, KvPrecision.U8)
    assert shape.weight_bytes == described.weight_bytes
    assert shape.architecture.layers == 3


def test_tensors_that_no_module_uses_are_ignored(tmp_path: Path) -> None:
    case = BY_NAME["llama"]
    path = make(tmp_path, case)
    config = {**case.config, "tie_word_embeddings": True}
    (path / "config.json").write_text(json.dumps(config))
    assert "lm_head.weight" not in describe(path).tensors


def test_generation_config_adds_ends_of_sequence(tmp_path: Path) -> None:
    path = make(tmp_path, BY_NAME["llama"])
    (path / "generation_config.json").write_text('{"eos_token_id": [7, 2, 9999]}')
    assert describe(path).architecture.eos_token_ids == (2, 7)


def replaced(path: Path, **fields: object) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | fields))


def test_missing_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    path = make(tmp_path, BY_NAME["llama"])
    replaced(path, num_hidden_layers=4)
    with pytest.raises(CheckpointError, match=r"tensor `model\.layers\.3\.input_layernorm\.weight` is missing"):
        describe(path)
    replaced(path, num_hidden_layers=3, intermediate_size=96)
    with pytest.raises(CheckpointError) as caught:
        describe(path)
    assert "model.safetensors: tensor `model.layers.0.mlp.gate_proj.weight` has shape [128, 64]" in str(caught.value)
    assert "config.json asks for [96, 64]" in str(caught.value)


def test_a_truncated_file_names_its_last_tensor(tmp_path: Path) -> None:
    file = make(tmp_path, BY_NAME["llama"]) / "model.safetensors"
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size - 1)
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors: is truncated: tensor `lm_head\.weight` ends at byte"
    ):
        open_checkpoint(file.parent)


def test_an_index_must_not_lead_elsewhere(tmp_path: Path) -> None:
    path = make(tmp_path, BY_NAME["llama-sharded"])
    index = path / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    for bad in ("../x.safetensors", "/etc/passwd", "..", "", "a\0b", ["model-00001-of-00003.safetensors"], 7):
        index.write_text(json.dumps({"weight_map": {**weight_map, "lm_head.weight": bad}}))
        with pytest.raises(CheckpointError, match="not a file name in this directory"):
            describe(path)


def test_an_index_that_disagrees_with_its_shards(tmp_path: Path) -> None:
    path = make(tmp_path, BY_NAME["llama-sharded"])
    index = path / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": {**weight_map, "extra": "model-00001-of-00003.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"model-00001-of-00003\.safetensors: tensor `extra` is missing"):
        describe(path)
    index.write_text(json.dumps({"weight_map": {**weight_map, "lm_head.weight": "gone.safetensors"}}))
    with pytest.raises(
        CheckpointError, match=r"gone\.safetensors: is missing, but model\.safetensors\.index\.json names"
    ):
        describe(path)
    index.write_text(json.dumps({"weights": {}}))
    with pytest.raises(CheckpointError, match="`weight_map` is missing"):
        describe(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "is not JSON"), (b"[]", "is not a JSON object"), (b"\xff", "is not JSON"), (None, "cannot be read")],
)
def test_config_json_errors(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = make(tmp_path, BY_NAME["llama"])
    (path / "config.json").unlink()
    if content is not None:
        (path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=says):
        describe(path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_links_lead_to_files_and_to_nothing_else(tmp_path: Path, name: str) -> None:
    """Caches of downloads are directories of links; what they lead to may be deleted, or be anything."""
    path = make(tmp_path, BY_NAME["llama"])
    file, kept = path / name, tmp_path / "blob"
    file.rename(kept)
    file.symlink_to(kept)
    assert describe(path).parameters
    kept.unlink()
    with pytest.raises(CheckpointError, match=f"{file}: cannot be read: it is a link to {kept}, where nothing is"):
        describe(path)
    os.mkfifo(kept)
    for other in (kept, Path("/dev/zero")):
        file.unlink()
        file.symlink_to(other)
        with pytest.raises(CheckpointError, match=f"{file}: is not a plain file"):
            describe(path)


def test_directories_without_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a directory"):
        describe(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text(json.dumps(BY_NAME["llama"].config))
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    with pytest.raises(CheckpointError, match=r"holds neither .*; pytorch_model\.bin is of a format that is not read"):
        describe(tmp_path)


def test_a_stored_type_that_cannot_be_computed(tmp_path: Path) -> None:
    path = make(tmp_path, BY_NAME["llama-bf16"])
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"dtype":"BF16"', b'"dtype":"I16" '))
    with pytest.raises(
        CheckpointError, match=r"`model\.embed_tokens\.weight` is stored as I16; known here: BF16, F16, F32"
    ):
        describe(path)
