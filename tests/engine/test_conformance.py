import numpy as np
import pytest

from llmhostd.domain.model import ComputePrecision, KvPrecision
from llmhostd.engines.conformance import ConformanceError, check_engine
from llmhostd.engines.interface import LoadOptions

F32 = LoadOptions(compute=ComputePrecision.F32, kv=KvPrecision.F32, threads=2)


@pytest.mark.parametrize("name", ["llama", "mistral-window", "qwen2-tied", "qwen3"])
def test_openvino_keeps_the_contract_exactly(engine, checkpoint_of, name: str) -> None:
    assert len(check_engine(engine, checkpoint_of(name), F32)) == 11


def test_openvino_keeps_the_contract_in_bf16_within_its_rounding(engine, checkpoint_of) -> None:
    options = LoadOptions(compute=ComputePrecision.BF16, kv=KvPrecision.BF16, threads=2)
    check_engine(engine, checkpoint_of("llama-bf16"), options, tolerance=0.5)


class Spoiled:
    """An engine whose instances break one clause each, in the way of `spoil`."""

    def __init__(self, engine, spoil) -> None:
        self._engine, self._spoil = engine, spoil

    def facts(self):
        return self._engine.facts()

    def load(self, checkpoint, options):
        instance = self._engine.load(checkpoint, options)
        self._spoil(instance)
        return instance


def forgets_moves(instance) -> None:
    resize = instance.resize_kv
    instance.resize_kv = lambda blocks, moves=(): resize(blocks)


def counts_positions_from_the_iteration(instance) -> None:
    run = instance.run

    def wrong(iteration):
        iteration.positions = np.arange(len(iteration.positions))
        return run(iteration)

    instance.run = wrong


def returns_every_row(instance) -> None:
    run = instance.run

    def wrong(iteration):
        iteration.sampled_indices = iteration.positions
        return run(iteration)

    instance.run = wrong


@pytest.mark.parametrize(
    ("spoil", "clause"),
    [
        (forgets_moves, "a resize keeps and moves blocks: after resizes"),
        (counts_positions_from_the_iteration, "a chunked prefill equals a whole one"),
        (returns_every_row, "results have the promised shapes"),
    ],
)
def test_broken_engines_are_caught(engine, checkpoint_of, spoil, clause: str) -> None:
    with pytest.raises(ConformanceError) as caught:
        check_engine(Spoiled(engine, spoil), checkpoint_of("llama"), F32)
    assert str(caught.value).startswith(clause)
