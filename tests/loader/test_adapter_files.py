import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from goldens.adapters import adapter_config, seeded_adapter, seeded_factors, write_adapter
from goldens.families import CASES

from llmhostd.checkpoints.architecture import parse_architecture
from llmhostd.domain.errors import CheckpointError
from llmhostd.loader.adapter import WEIGHTS_FILE, open_adapter
from llmhostd.loader.safetensors_writer import to_bf16

CONFIG = next(case for case in CASES if case.name == "qwen2").config
BASE = parse_architecture(CONFIG)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_factors_are_views_of_what_was_written(tmp_path: Path, dtype: str) -> None:
    weights = open_adapter(seeded_adapter(tmp_path / "a", CONFIG, 1, dtype), BASE)
    written = seeded_factors(adapter_config(), BASE, 1)
    kept = {"F32": lambda x: x, "F16": lambda x: x.astype(np.float16), "BF16": to_bf16}[dtype]
    assert len(weights.factors) == 3 * 7
    for one in weights.factors:
        (a, _), (b, _) = one.linear.tensors
        for values, found, name in ((written[a], one.a, one.a_dtype), (written[b], one.b, one.b_dtype)):
            np.testing.assert_array_equal(found, kept(values))
            assert name == dtype
            assert not found.flags.owndata
            assert not found.flags.writeable
    assert weights.weight_bytes == sum(values.size for values in written.values()) * (4 if dtype == "F32" else 2)


def test_identity_is_what_is_computed_not_where_it_lies(tmp_path: Path) -> None:
    first = seeded_adapter(tmp_path / "first", CONFIG, 1)
    shutil.copytree(first, tmp_path / "copy")
    scaled = seeded_adapter(tmp_path / "scaled", CONFIG, 1, config=adapter_config(alpha=9))
    other = seeded_adapter(tmp_path / "other", CONFIG, 2)
    one, same, *different = (open_adapter(path, BASE).identity for path in (first, tmp_path / "copy", scaled, other))
    assert one == same
    assert len({one, *different}) == 3


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(tmp_path: Path, dtype: str, value: float) -> None:
    factors = seeded_factors(adapter_config(), BASE, 1)
    name = next(name for name in factors if "layers.2.mlp.up_proj.lora_B" in name)
    factors[name][5, 1] = value
    bits = {"F16": 0x7E00, "BF16": 0x7FC0} if np.isnan(value) else {}
    path = write_adapter(tmp_path / "a", adapter_config(), factors, dtype)
    if bits.get(dtype):  # rounding is for finite values: write the bits
        raw = bytearray((path / WEIGHTS_FILE).read_bytes())
        at = open_tensor_begin(path, name) + (5 * 4 + 1) * 2
        raw[at : at + 2] = bits[dtype].to_bytes(2, "little")
        (path / WEIGHTS_FILE).write_bytes(raw)
    with pytest.raises(CheckpointError, match=f"tensor `{name}` holds values that are not finite"):
        open_adapter(path, BASE)


def open_tensor_begin(path: Path, name: str) -> int:
    raw = (path / WEIGHTS_FILE).read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return 8 + length + int(json.loads(raw[8 : 8 + length])[name]["data_offsets"][0])


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere: is not a directory with an adapter"):
        open_adapter(tmp_path / "nowhere", BASE)
    path = seeded_adapter(tmp_path / "a", CONFIG, 1)
    (path / WEIGHTS_FILE).rename(path / "adapter_model.bin")
    with pytest.raises(CheckpointError, match=r"holds no adapter_model\.safetensors; adapter_model\.bin is a pickle"):
        open_adapter(path, BASE)
    (path / "adapter_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"adapter_config\.json: cannot be read"):
        open_adapter(path, BASE)


def test_a_truncated_file_and_another_base(tmp_path: Path) -> None:
    path = seeded_adapter(tmp_path / "a", CONFIG, 1)
    wider = parse_architecture(CONFIG | {"intermediate_size": 160})
    with pytest.raises(CheckpointError, match=r"gate_proj\.lora_B\.weight` has shape \[128, 4\].*ask for \[160, 4\]"):
        open_adapter(path, wider)
    deeper = parse_architecture(CONFIG | {"num_hidden_layers": 4})
    with pytest.raises(CheckpointError, match=r"layers\.3\.self_attn\.q_proj\.lora_A\.weight` is missing"):
        open_adapter(path, deeper)
    whole = (path / WEIGHTS_FILE).read_bytes()
    (path / WEIGHTS_FILE).write_bytes(whole[:-1])
    with pytest.raises(CheckpointError, match="is truncated"):
        open_adapter(path, BASE)


def test_types_that_no_factor_has(tmp_path: Path) -> None:
    path = seeded_adapter(tmp_path / "a", CONFIG, 1)
    raw = (path / WEIGHTS_FILE).read_bytes()
    (path / WEIGHTS_FILE).write_bytes(raw.replace(b'"F32"', b'"I32"', 1))
    with pytest.raises(CheckpointError, match="is stored as I32; known here: BF16, F16, F32"):
        open_adapter(path, BASE)
