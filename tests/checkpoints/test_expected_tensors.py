from math import prod

import pytest
from goldens.families import CASES

from llmhostd.checkpoints.architecture import parse_architecture
from llmhostd.checkpoints.kv_size import kv_bytes_per_token
from llmhostd.checkpoints.quantization import Quantization
from llmhostd.checkpoints.tensors import Module, expected_tensors, parameter_count
from llmhostd.domain.model import KvPrecision, WeightFormat

BY_NAME = {case.name: parse_architecture(case.config) for case in CASES}
INT4 = Quantization(format=WeightFormat.INT4, group=64)


def test_order_is_that_of_computation() -> None:
    specs = expected_tensors(BY_NAME["llama"])
    assert [spec.module for spec in specs] == sorted((spec.module for spec in specs), key=list(Module).index)
    assert [spec.layer for spec in specs if spec.layer is not None] == [i for i in range(3) for _ in range(9)]
    assert [spec.name for spec in specs[-2:]] == ["model.norm.weight", "lm_head.weight"]


@pytest.mark.parametrize(
    ("name", "has", "lacks"),
    [
        ("qwen2", "model.layers.2.self_attn.k_proj.bias", "model.layers.0.self_attn.q_norm.weight"),
        ("qwen3", "model.layers.2.self_attn.q_norm.weight", "model.layers.0.self_attn.k_proj.bias"),
        ("qwen2-tied", "model.norm.weight", "lm_head.weight"),
        ("llama", "lm_head.weight", "model.layers.3.input_layernorm.weight"),
    ],
)
def test_families_differ_in_their_tensors(name: str, has: str, lacks: str) -> None:
    names = [spec.name for spec in expected_tensors(BY_NAME[name])]
    assert has in names
    assert lacks not in names
    assert len(set(names)) == len(names)


def test_int4_keeps_every_linear_value_and_an_int8_head() -> None:
    shapes = {spec.name: (spec.shape, spec.dtypes) for spec in expected_tensors(BY_NAME["llama"], INT4)}
    assert shapes["model.layers.0.mlp.down_proj.weight.q"] == ((64, 64), ("U8",))
    assert shapes["model.layers.0.mlp.down_proj.weight.scale"] == ((64, 2), ("F16",))
    assert shapes["model.layers.0.mlp.down_proj.weight.zp"] == ((64,), ("U8",))
    assert shapes["lm_head.weight.q"] == ((256, 64), ("I8",))
    assert "model.layers.0.mlp.down_proj.weight" not in shapes


def test_parameter_count_is_the_sum_of_shapes() -> None:
    for architecture in BY_NAME.values():
        expected = sum(prod(spec.shape) for spec in expected_tensors(architecture))
        assert parameter_count(architecture) == expected


def test_kv_bytes() -> None:
    a = BY_NAME["llama"]  # 3 layers, 2 kv heads of 16
    assert kv_bytes_per_token(a, KvPrecision.F32) == 3 * 2 * 2 * 16 * 4
    assert kv_bytes_per_token(a, KvPrecision.BF16) == 3 * 2 * 2 * 16 * 2
    assert kv_bytes_per_token(a, KvPrecision.U8) == 3 * 2 * ((16 + 4) + (16 + 8))
