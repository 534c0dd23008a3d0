"""Iterations that begin while weights are still being read end as if all had been there."""

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from goldens.families import CASES, prompt
from llmhostd_openvino.instance import OpenVinoInstance
from llmhostd_openvino.weight_inputs import StoredInputs

from llmhostd.domain.errors import CheckpointError
from llmhostd.domain.model import ComputePrecision, KvPrecision
from llmhostd.engines.interface import FillingInstance, InterruptibleInstance, LoadOptions
from llmhostd.engines.paged_contexts import Context, PagedContexts
from llmhostd.loader.store_index import DATA_FILE, read_index

F32 = LoadOptions(compute=ComputePrecision.F32, kv=KvPrecision.F32, threads=2)
EARLY = msgspec.structs.replace(F32, early=True)
IN_F32 = [case.name for case in CASES if case.dtype == "F32"]
BLOCKS = 8


class Held(StoredInputs):
    """Weights that are not there before a test says so."""

    def __init__(self, real: StoredInputs) -> None:
        self.__dict__ = dict(real.__dict__)
        self.come = False

    @property
    def there(self) -> bool:
        return self.come


def held_back(instance: OpenVinoInstance) -> list[Held]:
    """Take the weights of all its parts away."""
    for part in instance._parts:
        part._stored = Held(part._stored)
    return [part._stored for part in instance._parts]


def tokens_of(name: str, count: int) -> list[int]:
    return prompt(next(case for case in CASES if case.name == name), count)


def caches(instance: OpenVinoInstance) -> list[npt.NDArray[np.float32]]:
    return [tensor.data[:BLOCKS] for part in instance._parts for tensor in part.caches]


@pytest.mark.parametrize("name", IN_F32)
def test_it_ends_with_the_logits_and_the_caches_of_a_whole_load(layered, store_of, name: str) -> None:
    path, tokens = store_of(name), tokens_of(name, 70)
    whole, early = layered.load(path, F32), layered.load(path, EARLY)
    assert isinstance(early, FillingInstance)
    rows = []
    for instance in (whole, early):
        contexts, context = PagedContexts([instance], BLOCKS), Context(tokens)
        if instance is early:
            for one in held_back(early)[:-1]:
                early.begin(contexts.iteration([(context, 70)]))
                one.come = True
            early.begin(contexts.iteration([(context, 70)]))
            early.fill(lambda: None)
            assert not early.filling
        rows.append(contexts.step([(context, 70)])[0])
        context.tokens.append(int(rows[-1].argmax()))
        rows.append(contexts.step([(context, 1)])[0])
    np.testing.assert_array_equal(rows[:2], rows[2:])
    assert early.stages.read_bytes == whole.stages.read_bytes
    for mine, others in zip(caches(early), caches(whole), strict=True):
        np.testing.assert_array_equal(mine, others)


def test_parts_compute_once_and_only_on_weights_that_are_there(layered, store_of) -> None:
    early = layered.load(store_of("llama"), EARLY)
    held = held_back(early)
    contexts, context = PagedContexts([early], BLOCKS), Context(tokens_of("llama", 40))
    done = []
    for one in held:
        one.come = True
        early.begin(contexts.iteration([(context, 40)]))
        done.append(early._begun._done)
    assert done == [*range(1, len(held)), len(held) - 1]
    assert early._parts[-1]._stored is held[-1]


def test_what_changes_in_between_lets_it_begin_anew(layered, load, store_of) -> None:
    tokens = tokens_of("llama", 40)
    expected, expected_rows = PagedContexts([load("llama")], BLOCKS).greedy(tokens, 4)
    early = layered.load(store_of("llama"), EARLY)
    early.fill(lambda: None)
    contexts = PagedContexts([early], BLOCKS)
    one, other = Context(tokens), Context(tokens[::-1])
    early.begin(contexts.iteration([(one, 40)]))
    early.begin(contexts.iteration([(other, 40)]))
    early.begin(contexts.iteration([(one, 40)]))
    contexts.resize(BLOCKS + 4)
    assert early._begun is None
    early.begin(contexts.iteration([(one, 24)]))
    first = contexts.step([(one, 40)])[0]
    assert np.abs(first - expected_rows[0]).max() <= 1e-4
    contexts.release(one)
    assert contexts.greedy(tokens, 4)[0] == expected


def test_only_chains_of_stored_parts_are_early(layered, engine, checkpoint_of, store_of) -> None:
    path = store_of("llama")
    assert not engine.load(path, EARLY).filling
    assert not layered.load(checkpoint_of("llama"), EARLY).filling
    assert not layered.load(path, F32).filling


def test_a_flipped_bit_at_the_end_is_found_before_anything_is_whole(layered, store_of) -> None:
    path = store_of("llama")
    head = read_index(path).blocks[-1]
    data = bytearray((path / DATA_FILE).read_bytes())
    data[head.begin] ^= 1
    (path / DATA_FILE).write_bytes(data)
    early = layered.load(path, EARLY)
    contexts, context = PagedContexts([early], BLOCKS), Context(tokens_of("llama", 40))
    heard: list[int] = []

    def more() -> None:
        early.begin(contexts.iteration([(context, 40)]))
        heard.append(early._begun._done)

    with pytest.raises(CheckpointError, match=rf"weights\.llmhostd: block `{head.name}`, chunk 0 .* is damaged"):
        early.fill(more)
    assert heard[-1] == len(early._parts) - 1
    assert early.filling
    early.unload()


def test_an_iteration_that_nobody_needs_ends_between_two_parts_and_leaves_nothing_behind(layered, store_of) -> None:
    name = IN_F32[0]
    path, tokens = store_of(name), tokens_of(name, 40)
    rows = []
    for asked in (None, 1, 2):
        instance = layered.load(path, F32)
        assert isinstance(instance, InterruptibleInstance)
        contexts, context = PagedContexts([instance], BLOCKS), Context(tokens)
        if asked is not None:
            answers = iter([False] * asked + [True])
            assert (
                instance.run_unless(contexts.iteration([(context, 40)]), lambda answers=answers: next(answers)) is None
            )
            assert next(answers, "none is left") == "none is left"
        logits = instance.run_unless(contexts.iteration([(context, 40)]), lambda: False)
        assert logits is not None
        rows.append(logits.copy())
        instance.unload()
    np.testing.assert_array_equal(rows[1:], [rows[0]] * 2)
