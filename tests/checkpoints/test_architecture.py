import pytest
from goldens.families import CASES, LLAMA3_ROPE

from llmhostd.checkpoints.architecture import parse_architecture
from llmhostd.checkpoints.quantization import Quantization, parse_quantization, quantization_config
from llmhostd.domain.errors import CheckpointError
from llmhostd.domain.model import RopeScaling, WeightFormat

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}


def qwen2(**more: object) -> dict[str, object]:
    return {**LLAMA, "architectures": ["Qwen2ForCausalLM"], **more}


def test_defaults_are_those_of_transformers() -> None:
    a = parse_architecture({**LLAMA, "eos_token_id": [2, 5, 999, -1], "bos_token_id": 1})
    assert (a.head_dim, a.rope_theta, a.rope_scaling, a.tied_embeddings) == (16, 10000.0, None, False)
    assert (a.eos_token_ids, a.bos_token_id) == ((2, 5), 1)
    without_kv_heads = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert parse_architecture(without_kv_heads).kv_heads == 4
    assert parse_architecture({**LLAMA, "architectures": ["Qwen3ForCausalLM"]}).head_dim == 128
    assert parse_architecture({**LLAMA, "head_dim": 32}).head_dim == 32


@pytest.mark.parametrize(
    "config",
    [
        {"rope_scaling": LLAMA3_ROPE, "rope_theta": 500000.0},
        {"rope_parameters": {**LLAMA3_ROPE, "rope_theta": 500000.0}},
        {"rope_parameters": LLAMA3_ROPE, "rope_theta": 500000.0},
    ],
)
def test_llama3_rope_in_either_spelling(config: dict[str, object]) -> None:
    a = parse_architecture({**LLAMA, **config})
    assert a.rope_theta == 500000.0
    assert a.rope_scaling == RopeScaling(
        factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_tokens=64
    )


def test_default_rope_parameters_carry_theta() -> None:
    a = parse_architecture({**LLAMA, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}})
    assert (a.rope_theta, a.rope_scaling) == (1e6, None)


@pytest.mark.parametrize(
    ("config", "window"),
    [
        ({**LLAMA, "sliding_window": 32}, (None, 0)),
        ({**LLAMA, "architectures": ["MistralForCausalLM"], "sliding_window": 32}, (32, 0)),
        ({**LLAMA, "architectures": ["MistralForCausalLM"], "sliding_window": None}, (None, 0)),
        (qwen2(sliding_window=32, max_window_layers=1), (None, 0)),
        (qwen2(use_sliding_window=True, sliding_window=32, max_window_layers=1), (32, 1)),
        (qwen2(use_sliding_window=True, sliding_window=32, max_window_layers=4), (None, 0)),
        (qwen2(use_sliding_window=True), (None, 0)),  # the default first window layer is 28
        (
            qwen2(
                use_sliding_window=True,
                sliding_window=32,
                layer_types=["full_attention", "full_attention", "sliding_attention", "sliding_attention"],
            ),
            (32, 2),
        ),
    ],
)
def test_sliding_windows(config: dict[str, object], window: tuple[int | None, int]) -> None:
    a = parse_architecture(config)
    assert (a.sliding_window_tokens, a.sliding_from_layer) == window


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "`architectures` names 'GPT2LMHeadModel', which is not known; known: L",
        ),
        ({"architectures": ["Qwen2MoeForCausalLM"]}, "nearest: Qwen2ForCausalLM"),
        ({"architectures": []}, "`architectures` is missing or empty"),
        ({"architectures": "LlamaForCausalLM"}, "`architectures` must be a list of strings"),
        ({"hidden_size": None, "hidden_sizes": 1}, "`hidden_size` is missing; there is `hidden_sizes`"),
        ({"hidden_size": "64"}, "`hidden_size` must be a whole number above 0, is '64'"),
        ({"num_hidden_layers": 10**12}, "`num_hidden_layers` is 1000000000000; at most 1000"),
        ({"num_hidden_layers": True}, "`num_hidden_layers` must be a whole number"),
        ({"num_key_value_heads": 3}, "`num_key_value_heads` is 3, which does not divide num_attention_heads 4"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5}, "`num_attention_heads` is 5, which does not divide hid"),
        ({"head_dim": 15}, "`head_dim` is 15; rotary embedding needs an even number"),
        ({"hidden_act": "gelu"}, "`hidden_act` is 'gelu'; only 'silu'"),
        ({"attention_bias": True}, "`attention_bias` is true"),
        ({"rms_norm_eps": float("nan")}, "`rms_norm_eps` must be a number above 0"),
        ({"tie_word_embeddings": "yes"}, "`tie_word_embeddings` must be true or false"),
        ({"rope_scaling": "llama3"}, "`rope_scaling` must be an object"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0}},
            "`rope_scaling.type` is 'yarn'; known: 'default', 'llama3'",
        ),
        ({"rope_scaling": {"rope_type": "llama3"}}, "`rope_scaling.low_freq_factor` is missing"),
        (
            {"rope_scaling": {**LLAMA3_ROPE, "high_freq_factor": 1.0}},
            "`rope_scaling.high_freq_factor` is 1.0, not above",
        ),
        ({"eos_token_id": "</s>"}, "`eos_token_id` must be a token id"),
    ],
)
def test_errors_name_the_file_and_the_field(change: dict[str, object], says: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        parse_architecture({**LLAMA, **change}, "/models/x/config.json")
    assert str(caught.value).startswith("/models/x/config.json: `")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_layer_types_that_are_not_a_prefix_are_refused() -> None:
    kinds = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    with pytest.raises(CheckpointError, match="layer_types"):
        parse_architecture(qwen2(use_sliding_window=True, layer_types=kinds))


def test_every_golden_case_parses_to_its_family() -> None:
    families = {case.name.split("-")[0].rstrip("3"): parse_architecture(case.config).family for case in CASES}
    assert families == {"llama": "llama", "mistral": "mistral", "qwen2": "qwen2", "qwen": "qwen3"}


@pytest.mark.parametrize(
    "quantization",
    [Quantization(format=WeightFormat.INT8), Quantization(format=WeightFormat.INT4, group=64)],
)
def test_quantization_reads_what_it_writes(quantization: Quantization) -> None:
    assert parse_quantization({"quantization_config": quantization_config(quantization)}) == quantization


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"quant_method": "gptq", "bits": 4}, "`quantization_config.quant_method` is 'gptq'"),
        (
            {"quant_method": "llmhostd", "format": "int3"},
            "`quantization_config.format` is 'int3'; known: 'int8', 'int4'",
        ),
        ({"quant_method": "llmhostd", "format": "int4", "group": 48}, "`quantization_config.group` is 48"),
    ],
)
def test_foreign_quantization_is_refused(section: dict[str, object], says: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        parse_quantization({"quantization_config": section})
    assert says in str(caught.value)
