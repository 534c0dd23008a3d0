"""Weights that are used where they lie in their store, until they are packed."""

import time
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
from goldens.adapters import adapter_config, seeded_adapter, seeded_factors, write_adapter
from goldens.families import CASES, prompt
from llmhostd_openvino import compiler

from llmhostd.checkpoints.adapter import linear_names
from llmhostd.domain.errors import CheckpointError, EngineError
from llmhostd.domain.model import AdapterSlots, ComputePrecision, KvPrecision
from llmhostd.engines.interface import LoadOptions, ModuleRange
from llmhostd.engines.paged_contexts import Context, PagedContexts
from llmhostd.loader.adapter import open_adapter
from llmhostd.loader.store_index import DATA_FILE

F32 = LoadOptions(compute=ComputePrecision.F32, kv=KvPrecision.F32, threads=2)
BF16 = LoadOptions(compute=ComputePrecision.BF16, kv=KvPrecision.BF16, threads=2)
IN_F32 = [case.name for case in CASES if case.dtype == "F32"]
LLAMA = next(case for case in CASES if case.name == "llama")


@pytest.mark.parametrize("name", IN_F32)
def test_in_place_and_packed_compute_the_same(layered, load, store_of, name: str) -> None:
    tokens = prompt(next(case for case in CASES if case.name == name), 70)
    expected_tokens, expected = PagedContexts([load(name)], kv_blocks=8).greedy(tokens, 12)
    instance = layered.load(store_of(name), F32)
    contexts = PagedContexts([instance], kv_blocks=8)
    for settled in (False, True):
        assert instance.settled is settled
        got_tokens, got = contexts.greedy(tokens, 12)
        assert got_tokens == expected_tokens
        assert np.abs(got - expected).max() <= 1e-4
        instance.pack()
        contexts.greedy(tokens, len(instance._parts) + 1)
    assert instance.settled


def test_adapters_in_place_and_packed_compute_the_same(layered, store_of, tmp_path: Path) -> None:
    room = AdapterSlots(slots=3, rank=6, modules=linear_names())
    instance = layered.load(store_of("llama"), msgspec.structs.replace(F32, adapters=room))
    for slot in range(3):
        written = seeded_adapter(tmp_path / str(slot), LLAMA.config, slot, "F32", adapter_config(rank=6, alpha=9))
        instance.set_adapter(slot, open_adapter(written, instance.shape.architecture))
    contexts, rows = PagedContexts([instance], kv_blocks=8), []
    for settled in (False, True):
        running = [Context(prompt(LLAMA, 5 + slot), slot) for slot in (1, 2, 0)]
        for one in running:
            contexts.step([(one, len(one.tokens) - 1)], sample=())
        assert instance.settled is settled
        rows.append(contexts.step([(one, 1) for one in running]))
        for one in running:
            contexts.release(one)
        instance.pack()
        contexts.greedy(prompt(LLAMA, 70), len(instance._parts) + 1)
    np.testing.assert_allclose(*rows, atol=1e-4)


def test_an_adapter_that_only_some_parts_can_take_is_in_no_slot(layered, store_of, tmp_path: Path) -> None:
    room = AdapterSlots(slots=2, rank=6, modules=linear_names())
    instance = layered.load(store_of("llama"), msgspec.structs.replace(F32, adapters=room))
    architecture, config = instance.shape.architecture, adapter_config(rank=6, alpha=1e6)
    last = f"layers.{architecture.layers - 1}."
    factors = {
        name: values * np.float32(1e35 if last in name and "lora_B" in name else 1)
        for name, values in seeded_factors(config, architecture, 1).items()
    }
    weights = open_adapter(write_adapter(tmp_path / "a", config, factors), architecture)
    with pytest.raises(EngineError, match=f"of layer {architecture.layers - 1} is too large for this precision"):
        instance.set_adapter(0, weights)
    contexts = PagedContexts([instance], kv_blocks=8)
    with pytest.raises(EngineError, match=r"names adapter slots \[0\]; not all of them hold an adapter"):
        contexts.greedy(prompt(LLAMA, 5), 1, adapter=0)


def test_graphs_of_shapes_that_are_loaded_often_are_kept(new_engine, store_of, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_KEPT_GRAPHS", 2)
    stores, compiled = {name: store_of(name) for name in ("llama", "qwen2", "qwen3")}, []
    for name in ("llama", "qwen2", "llama", "qwen3", "llama"):
        instance = new_engine.load(stores[name], F32)
        compiled.append(instance.stages.compile_s > 0.0)
        instance.unload()
    assert compiled == [True, True, False, True, False]


def test_it_packs_a_part_with_each_iteration_beside_its_work(layered, store_of) -> None:
    instance = layered.load(store_of("llama"), F32)
    contexts = PagedContexts([instance], kv_blocks=8)
    layers = instance.shape.architecture.layers
    assert sum(part.packs_later for part in instance._parts) == layers
    before, counts, end_s = contexts.greedy(prompt(LLAMA, 70), 1), [layers], time.monotonic() + 60
    while not instance.settled and time.monotonic() < end_s:
        counts.append(sum(part.packs_later for part in instance._parts))
        contexts.greedy(prompt(LLAMA, 70), 1)
    assert all(0 <= earlier - later <= 1 for earlier, later in pairwise(counts))
    assert instance.settled
    after = contexts.greedy(prompt(LLAMA, 70), 1)
    assert after[0] == before[0]
    assert np.abs(after[1] - before[1]).max() <= 1e-4


def test_models_of_one_shape_share_a_graph_and_nothing_else(layered, store_of, load) -> None:
    one = layered.load(store_of("llama-bf16"), BF16)
    two = layered.load(one._checkpoint.path, BF16)
    assert two.stages.compile_s == 0
    tokens = prompt(LLAMA, 70)
    expected = PagedContexts([load("llama-bf16", BF16.compute, BF16.kv)], kv_blocks=8).greedy(tokens, 1)[1]
    first, second = (PagedContexts([each], kv_blocks=8) for each in (one, two))
    rows = [first.greedy(tokens, 1)[1], second.greedy(tokens, 1)[1]]
    np.testing.assert_array_equal(*rows)
    assert np.abs(rows[0] - expected).max() <= 0.1
    one.unload()
    np.testing.assert_array_equal(second.greedy(tokens, 1)[1], second.greedy(tokens, 1)[1])


def test_a_range_of_modules_in_place(layered, load, store_of) -> None:
    path = store_of("mistral-window")
    tokens = prompt(next(case for case in CASES if case.name == "mistral-window"), 90)
    expected = PagedContexts([load("mistral-window")], kv_blocks=8).greedy(tokens, 8)
    layers = load("mistral-window").shape.architecture.layers
    ranges = ModuleRange(first=0, end=1, head=False), ModuleRange(first=1, end=layers, embedding=False)
    halves = [layered.load(path, msgspec.structs.replace(F32, modules=one)) for one in ranges]
    got = PagedContexts(halves, kv_blocks=8).greedy(tokens, 8)
    assert got[0] == expected[0]
    assert np.abs(got[1] - expected[1]).max() <= 1e-4


def test_what_is_unloaded_while_it_packs_is_gone(layered, store_of) -> None:
    path = store_of("llama")
    for _ in range(8):
        instance = layered.load(path, F32)
        PagedContexts([instance], kv_blocks=4).greedy(prompt(LLAMA, 20), 1)
        instance.unload()
        assert instance.held_bytes() == 0
    assert PagedContexts([layered.load(path, F32)], kv_blocks=4).greedy(prompt(LLAMA, 20), 2)[0]


def test_a_flipped_bit_is_found_at_load(layered, store_of) -> None:
    path = store_of("llama")
    data = bytearray((path / DATA_FILE).read_bytes())
    data[len(data) // 2] ^= 1
    (path / DATA_FILE).write_bytes(data)
    with pytest.raises(CheckpointError, match=r"weights\.llmhostd: block `.*`, chunk \d+ .* is damaged"):
        layered.load(path, F32)
