import json
import threading
from pathlib import Path

import numpy as np
import pytest
from goldens.families import CASES, prompt

from llmhostd.domain.errors import CheckpointError, EngineError
from llmhostd.domain.model import ComputePrecision, KvPrecision
from llmhostd.engines.interface import LoadOptions
from llmhostd.engines.paged_contexts import PagedContexts

LLAMA = next(case for case in CASES if case.name == "llama")


def test_broken_checkpoints_leave_the_engine_well(engine, load, checkpoint_of, tmp_path: Path) -> None:
    whole = (checkpoint_of("llama") / "model.safetensors").read_bytes()
    config = json.loads((checkpoint_of("llama") / "config.json").read_text())
    options = LoadOptions(compute=ComputePrecision.F32, kv=KvPrecision.F32, threads=2)
    for weights, changed, says in (
        (whole[:-100], {}, r"model\.safetensors: is truncated: tensor `lm_head\.weight`"),
        (whole[:5], {}, r"model\.safetensors: is truncated"),
        (whole, {"num_hidden_layers": 9}, r"tensor `model\.layers\.3\.input_layernorm\.weight` is missing"),
        (whole, {"hidden_size": 128}, r"tensor `model\.embed_tokens\.weight` has shape \[256, 64\]"),
        (whole, {"architectures": ["PhiForCausalLM"]}, r"config\.json: `architectures` names 'PhiForCausalLM'"),
    ):
        (tmp_path / "model.safetensors").write_bytes(weights)
        (tmp_path / "config.json").write_text(json.dumps({**config, **changed}))
        with pytest.raises(CheckpointError, match=says) as caught:
            engine.load(tmp_path, options)
        assert str(tmp_path) in str(caught.value)
        assert "\n" not in str(caught.value)
    assert PagedContexts([load("llama")], kv_blocks=4).greedy(prompt(LLAMA, 5), 2)[0]


def test_threads_are_checked(engine, checkpoint_of) -> None:
    options = LoadOptions(compute=ComputePrecision.F32, kv=KvPrecision.F32, threads=0)
    with pytest.raises(EngineError, match="threads must be at least 1, is 0"):
        engine.load(checkpoint_of("llama"), options)


def test_one_thread_computes_the_same(engine, load, checkpoint_of) -> None:
    options = LoadOptions(compute=ComputePrecision.F32, kv=KvPrecision.F32, threads=1)
    single = PagedContexts([engine.load(checkpoint_of("llama"), options)], kv_blocks=8)
    double = PagedContexts([load("llama")], kv_blocks=8)
    tokens, logits = single.greedy(prompt(LLAMA, 70), 4)
    expected_tokens, expected = double.greedy(prompt(LLAMA, 70), 4)
    assert tokens == expected_tokens
    assert np.abs(logits - expected).max() <= 1e-4


def test_loading_and_unloading_beside_a_running_instance(load, checkpoint_of) -> None:
    contexts = PagedContexts([load("llama")], kv_blocks=8)
    expected_tokens, expected = contexts.greedy(prompt(LLAMA, 70), 8)
    failures: list[BaseException] = []

    def load_many() -> None:
        try:
            for name in ("qwen3", "mistral-window", "llama-bf16", "qwen2-tied") * 3:
                instance = load(name)
                instance.resize_kv(4)
                instance.unload()
        except BaseException as error:
            failures.append(error)

    loader = threading.Thread(target=load_many)
    loader.start()
    runs = 0
    while loader.is_alive() or runs < 3:
        tokens, logits = contexts.greedy(prompt(LLAMA, 70), 8)
        assert tokens == expected_tokens
        np.testing.assert_array_equal(logits, expected)
        runs += 1
    loader.join()
    assert not failures


def test_the_files_may_go_while_the_model_runs(load, checkpoint_of, tmp_path: Path) -> None:
    """A model that is removed from disk serves on until it is unloaded."""
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((checkpoint_of("llama") / name).read_bytes())
    contexts = PagedContexts([load(tmp_path)], kv_blocks=8)
    before = contexts.greedy(prompt(LLAMA, 70), 4)
    (tmp_path / "model.safetensors").unlink()
    after = contexts.greedy(prompt(LLAMA, 70), 4)
    assert before[0] == after[0]
    np.testing.assert_array_equal(before[1], after[1])


@pytest.mark.parametrize("name", ["llama", "llama-bf16", "llama-f16"])
def test_tensors_that_start_at_odd_bytes(load, checkpoint_of, tmp_path: Path, name: str) -> None:
    """The format does not ask writers to align anything."""
    content = (checkpoint_of(name) / "model.safetensors").read_bytes()
    header_bytes = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + header_bytes] + b" "
    (tmp_path / "model.safetensors").write_bytes(
        (header_bytes + 1).to_bytes(8, "little") + header + content[8 + header_bytes :]
    )
    (tmp_path / "config.json").write_bytes((checkpoint_of(name) / "config.json").read_bytes())
    odd = PagedContexts([load(tmp_path)], kv_blocks=8).greedy(prompt(LLAMA, 70), 4)
    even = PagedContexts([load(name)], kv_blocks=8).greedy(prompt(LLAMA, 70), 4)
    assert odd[0] == even[0]
    np.testing.assert_array_equal(odd[1], even[1])
