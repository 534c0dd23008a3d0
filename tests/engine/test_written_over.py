"""Weights that somebody writes over while an instance uses them, at every point of its life."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from goldens.families import CASES, prompt

from llmhostd.domain.model import ComputePrecision, KvPrecision, WeightFormat
from llmhostd.engines.interface import EngineInstance, LoadOptions
from llmhostd.engines.paged_contexts import PagedContexts
from llmhostd.loader.convert import convert
from llmhostd.loader.page_cache import weight_files

pytestmark = pytest.mark.usefixtures("leases")
F32 = LoadOptions(compute=ComputePrecision.F32, kv=KvPrecision.F32, threads=2)
BF16 = LoadOptions(compute=ComputePrecision.BF16, kv=KvPrecision.BF16, threads=2)
CHECKPOINTS = [
    ("llama", "plain", F32),
    ("llama", "store", F32),
    ("llama", "int8", F32),
    ("qwen2-tied", "store", BF16),
    ("qwen2-tied", "int4", BF16),
]
WHEN = ["warm", "ran", "settled", "told to settle"]


@pytest.fixture
def made(checkpoint_of: Callable[[str], Path], tmp_path: Path) -> Callable[[str, str], Path]:
    """A checkpoint of its own in each form."""

    def make(name: str, form: str) -> Path:
        formats = {"int8": WeightFormat.INT8, "int4": WeightFormat.INT4}
        convert(checkpoint_of(name), tmp_path / "store", formats.get(form))
        if form != "plain":
            return tmp_path / "store"
        (tmp_path / "plain").mkdir()
        for file in checkpoint_of(name).iterdir():
            (tmp_path / "plain" / file.name).write_bytes(file.read_bytes())
        return tmp_path / "plain"

    return make


def spoil(checkpoint: Path) -> None:
    """Write what is no number into all of its weights, and then cut them short."""
    for file in weight_files(checkpoint):
        size = file.stat().st_size
        file.write_bytes(b"\xff" * size)
        os.truncate(file, 0)


def settle(instance: EngineInstance, contexts: PagedContexts, tokens: list[int]) -> None:
    instance.pack()
    while not instance.settled:
        contexts.greedy(tokens, 1)


def assert_same(logits: np.ndarray, expected: np.ndarray, options: LoadOptions) -> None:
    """But for the order of sums: which weights are packed by when is a matter of time. Spoilt ones are no numbers."""
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-3 if options is F32 else 0.1)


@pytest.mark.parametrize(("name", "form", "options"), CHECKPOINTS, ids=[f"{one[0]}-{one[1]}" for one in CHECKPOINTS])
def test_an_instance_computes_what_it_computed(layered, made, name: str, form: str, options: LoadOptions) -> None:
    case = next(case for case in CASES if case.name == name)
    tokens, checkpoint = prompt(case, 40), made(name, form)
    before = {file: file.read_bytes() for file in weight_files(checkpoint)}
    for when in WHEN:
        twin, instance = layered.load(checkpoint, options), layered.load(checkpoint, options)
        contexts, expected = PagedContexts([instance], kv_blocks=8), PagedContexts([twin], kv_blocks=8)
        if when != "warm":
            assert_same(contexts.greedy(tokens, 3)[1], expected.greedy(tokens, 3)[1], options)
        if when == "settled":
            settle(instance, contexts, tokens)
            settle(twin, expected, tokens)
        same, held_bytes = expected.greedy(tokens, 12)[1], instance.held_bytes()
        spoil(checkpoint)
        assert instance.held_bytes() >= held_bytes + sum(len(content) for content in before.values())
        if when == "told to settle":
            settle(instance, contexts, tokens)
            settle(twin, expected, tokens)
            same = expected.greedy(tokens, 12)[1]
        assert_same(contexts.greedy(tokens, 12)[1], same, options)
        instance.unload()
        twin.unload()
        for file, content in before.items():
            file.write_bytes(content)
