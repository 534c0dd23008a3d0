"""Slots that are used together are brought side by side, and never at more cost than was spared."""

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
from goldens.adapters import adapter_config, seeded_adapter
from goldens.families import CASES, prompt
from hypothesis import given
from hypothesis import strategies as st
from llmhostd_openvino.slot_swaps import SWAP_READS, SlotSwaps

from llmhostd.checkpoints.adapter import linear_names
from llmhostd.checkpoints.architecture import parse_architecture
from llmhostd.domain.model import AdapterSlots, ComputePrecision, KvPrecision
from llmhostd.engines.interface import AdaptableInstance, Engine, LoadOptions
from llmhostd.engines.paged_contexts import Context, PagedContexts
from llmhostd.loader.adapter import open_adapter

SLOTS = 8
SETS = st.sets(st.integers(0, SLOTS - 1), min_size=1)


class Places:
    """Slots in places, as an engine keeps them."""

    def __init__(self) -> None:
        self.swaps = SlotSwaps(SLOTS)
        self.of = list(range(SLOTS))
        self.moved = 0

    def use(self, slots: set[int]) -> int:
        """Returns how many slots are read in vain before anything moves."""
        used = [self.of[slot] for slot in slots]
        swap = self.swaps.due(used, len(used))
        if swap is not None:
            here, there = swap
            assert here in used
            assert there not in used
            self.of = [there if one == here else here if one == there else one for one in self.of]
            self.moved += 1
        return max(used) - min(used) + 1 - len(used)


def fewest_moves(places: set[int]) -> int:
    """By trying all sets of places that lie side by side."""
    every = (set(one) for one in combinations(range(SLOTS), len(places)))
    return min(len(places - one) for one in every if max(one) - min(one) < len(one))


@given(st.lists(SETS, max_size=60))
def test_swaps_never_cost_more_than_was_read_in_vain(iterations: list[set[int]]) -> None:
    places = Places()
    in_vain = 0
    for slots in iterations:
        in_vain += places.use(slots)
        assert places.moved * SWAP_READS <= in_vain
    assert sorted(places.of) == list(range(SLOTS))


@given(st.lists(SETS, max_size=20), SETS)
def test_what_goes_on_together_lies_side_by_side_after_the_fewest_moves(
    before: list[set[int]], slots: set[int]
) -> None:
    places = Places()
    for one in before:
        places.use(one)
    fewest, moved = fewest_moves({places.of[slot] for slot in slots}), places.moved
    for _ in range(SWAP_READS * SLOTS):
        places.use(slots)
    assert places.use(slots) == 0
    assert places.moved - moved == fewest


def test_rows_come_out_the_same_wherever_their_adapters_lie(
    engine: Engine, checkpoint_of: Callable[[str], Path], tmp_path: Path
) -> None:
    """Slots that are far apart, for long enough to change places; then all of them; then one of them filled again."""
    case = next(one for one in CASES if one.name == "llama")
    room = AdapterSlots(slots=SLOTS, rank=6, modules=linear_names())
    options = LoadOptions(compute=ComputePrecision.F32, kv=KvPrecision.F32, threads=2, adapters=room)
    weights = [
        open_adapter(
            seeded_adapter(tmp_path / str(seed), case.config, seed, "F32", adapter_config(rank=6, alpha=9)),
            parse_architecture(case.config),
        )
        for seed in range(SLOTS)
    ]

    def rows(slot_of: dict[int, int]) -> list[np.ndarray]:
        instance = engine.load(checkpoint_of("llama"), options)
        assert isinstance(instance, AdaptableInstance)
        for seed, slot in slot_of.items():
            instance.set_adapter(slot, weights[seed])
        contexts = PagedContexts([instance], kv_blocks=40)
        running = {seed: Context(prompt(case, 5 + seed), slot) for seed, slot in slot_of.items()}
        for one in running.values():
            contexts.step([(one, len(one.tokens) - 1)], sample=())
        seen = []
        for step in range(14):
            together = [one for seed, one in running.items() if seed in (0, 1, 2) or step > 10]
            seen.append(contexts.step([(one, 1) for one in together]))
            for one in together:
                one.tokens.append(7)
            if step == 11:
                instance.set_adapter(slot_of[1], weights[7])
        instance.unload()
        return seen

    near = rows({seed: seed for seed in range(6)})
    far = rows({0: 0, 1: 7, 2: 3, 3: 1, 4: 5, 5: 6})
    for one, other in zip(near, far, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
