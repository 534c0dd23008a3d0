from typing import Any

import pytest
from goldens.adapters import adapter_config, factor_shapes
from goldens.families import CASES
from hypothesis import given
from hypothesis import strategies as st

from llmhostd.checkpoints.adapter import check_tensors, linear_names, parse_adapter
from llmhostd.checkpoints.architecture import parse_architecture
from llmhostd.checkpoints.tensors import linear_shapes
from llmhostd.domain.errors import CheckpointError

BASE = parse_architecture(next(case for case in CASES if case.name == "qwen3").config)


def test_names_are_those_of_the_base() -> None:
    assert [f"{name}.weight" for name in linear_names()] == list(linear_shapes(BASE))


def test_every_targeted_layer_is_updated() -> None:
    config = adapter_config(rank=4, alpha=8, targets=("q_proj", "down_proj"))
    adapter = parse_adapter(config, BASE)
    assert adapter.base == "someone/base"
    assert adapter.modules == ("self_attn.q_proj", "mlp.down_proj")
    assert [(one.layer, one.name) for one in adapter.linears] == [
        (layer, name) for layer in range(3) for name in ("self_attn.q_proj", "mlp.down_proj")
    ]
    assert {one.scale for one in adapter.linears} == {2.0}
    assert {(one.outputs, one.inputs) for one in adapter.linears} == {(128, 64), (64, 128)}
    assert dict(pair for one in adapter.linears for pair in one.tensors) == factor_shapes(config, BASE)


def test_all_linear_means_every_layer_but_the_head() -> None:
    adapter = parse_adapter(adapter_config() | {"target_modules": "all-linear"}, BASE)
    assert adapter.modules == linear_names()
    assert len(adapter.linears) == 3 * 7


def test_ranks_and_scales_by_pattern_the_first_that_matches() -> None:
    config = adapter_config(
        rank=4,
        alpha=8,
        rank_pattern={"layers.1.self_attn.q_proj": 2, "q_proj": 16, "^model.layers.2.mlp.up_proj$": 1},
        alpha_pattern={"k_proj": 3.0},
        use_rslora=True,
    )
    found = {(one.layer, one.name): (one.rank, one.scale) for one in parse_adapter(config, BASE).linears}
    assert found[0, "self_attn.q_proj"] == (16, 2.0)
    assert found[1, "self_attn.q_proj"] == (2, 8 / 2**0.5)
    assert found[2, "mlp.up_proj"] == (1, 8.0)
    assert found[1, "mlp.up_proj"] == (4, 4.0)
    assert found[1, "self_attn.k_proj"] == (4, 1.5)
    assert parse_adapter(config, BASE).rank == 16


@pytest.mark.parametrize(
    ("more", "layers"),
    [
        ({"layers_to_transform": [0, 2]}, {0, 2}),
        ({"layers_to_transform": 1, "layers_pattern": "layers"}, {1}),
        ({"target_modules": ["model.layers.2.mlp.up_proj"]}, {2}),
        ({"target_modules": ["model.layers.2.mlp.up_proj", "v_proj"], "layers_to_transform": [0]}, {0, 2}),
    ],
)
def test_some_layers_only(more: dict[str, Any], layers: set[int]) -> None:
    assert {one.layer for one in parse_adapter(adapter_config(**more), BASE).linears} == layers


@pytest.mark.parametrize("start", [True, False, "gaussian", "eva", "orthogonal"])
def test_where_training_began_does_not_matter(start: object) -> None:
    parse_adapter(adapter_config(init_lora_weights=start, runtime_config=None, peft_version="0.18.0"), BASE)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"peft_type": "LOHA"}, "`peft_type` is 'LOHA'; only 'LORA' is read"),
        ({"peft_type": None}, "`peft_type` is ''"),
        ({"task_type": "SEQ_CLS"}, "`task_type` is 'SEQ_CLS'"),
        ({"use_dora": True}, "`use_dora` is True; that is not computed"),
        ({"fan_in_fan_out": True}, "`fan_in_fan_out` is True; that is not computed"),
        ({"bias": "lora_only"}, "`bias` is 'lora_only'; that is not computed"),
        ({"lora_bias": True}, "`lora_bias` is True"),
        ({"modules_to_save": ["lm_head"]}, "`modules_to_save` is ['lm_head']"),
        ({"layer_replication": [[0, 2]]}, "`layer_replication` is [[0, 2]]"),
        ({"exclude_modules": ["q_proj"]}, "`exclude_modules` is ['q_proj']"),
        ({"something_of_tomorrow": 3}, "`something_of_tomorrow` is 3; that is not computed"),
        ({"init_lora_weights": "pissa_niter_16"}, "`init_lora_weights` is 'pissa_niter_16', which changes the base"),
        ({"r": 0}, "`r` must be a whole number above 0, is 0"),
        ({"r": None}, "`r` is missing"),
        ({"r": 10**400}, "at most 8192 is read"),
        ({"lora_alpha": 10**400}, "`lora_alpha` must be a number above 0"),
        ({"rank_pattern": {"q_proj": 9000}}, "`rank_pattern.q_proj` is 9000; at most 8192 is read"),
        ({"lora_alpha": "8"}, "`lora_alpha` must be a number above 0"),
        ({"use_rslora": 1}, "`use_rslora` must be true or false"),
        ({"target_modules": None}, "`target_modules` is missing or empty; known: self_attn.q_proj"),
        ({"target_modules": ".*_proj"}, "`target_modules` is '.*_proj'; a list of names or 'all-linear' is read"),
        ({"target_modules": ["q_prj"]}, "names 'q_prj', no linear layer of this base's layers; nearest: q_proj"),
        ({"target_modules": ["lm_head"]}, "`target_modules` names 'lm_head'"),
        ({"target_modules": ["model.layers.3.mlp.up_proj"]}, "names 'model.layers.3.mlp.up_proj'"),
        ({"layers_to_transform": [3]}, "`layers_to_transform` is [3]; this base's layers are 0 to 2"),
        ({"layers_to_transform": []}, "`layers_to_transform` is []"),
        ({"layers_to_transform": [1], "layers_pattern": "blocks"}, "`layers_pattern` is 'blocks'"),
        ({"layers_to_transform": [1], "target_modules": "all-linear"}, "`layers_to_transform` goes with a list"),
        ({"layers_to_transform": [1], "target_modules": ["layers.0.mlp.up_proj"]}, "`layers_to_transform` leaves"),
        ({"rank_pattern": {"(q|k)_proj": 2}}, "`rank_pattern.(q|k)_proj` is an expression"),
        ({"rank_pattern": {"q_proj": 2.5}}, "`rank_pattern.q_proj` must be a whole number above 0"),
        ({"rank_pattern": [1]}, "`rank_pattern` must be an object"),
        ({"alpha_pattern": {"q_proj": -1}}, "`alpha_pattern.q_proj` must be a number above 0"),
    ],
)  # fmt: skip
def test_what_would_be_computed_otherwise_is_refused(more: dict[str, Any], says: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        parse_adapter(adapter_config(**more), BASE, "somewhere/adapter_config.json")
    assert str(caught.value).startswith("somewhere/adapter_config.json: `")
    assert says in str(caught.value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["q_proj", "LORA"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)


@given(more=st.dictionaries(st.sampled_from([*adapter_config(), "exclude_modules", "lora_bias"]), VALUES, max_size=4))
def test_whatever_it_says_it_is_read_or_refused(more: dict[str, Any]) -> None:
    try:
        adapter = parse_adapter(adapter_config() | more, BASE, "a.json")
    except CheckpointError as error:
        assert str(error).startswith("a.json: `")
    else:
        assert adapter.linears
        assert all(0 <= one.scale < float("inf") for one in adapter.linears)


def test_tensors_are_held_against_the_configuration() -> None:
    config = adapter_config(targets=("q_proj",))
    adapter, shapes = parse_adapter(config, BASE), factor_shapes(config, BASE)
    check_tensors(adapter, shapes, "file")
    name = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"
    for wrong, says in (
        ({key: shape for key, shape in shapes.items() if key != name}, f"file: tensor `{name}` is missing"),
        (shapes | {name: (8, 64)}, f"file: tensor `{name}` has shape [8, 64]; the configuration"),
        (shapes | {"base_model.model.lm_head.weight": (256, 64)}, "`base_model.model.lm_head.weight` is not asked"),
    ):  # fmt: skip
        with pytest.raises(CheckpointError) as caught:
            check_tensors(adapter, wrong, "file")
        assert says in str(caught.value)
