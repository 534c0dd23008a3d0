"""Many adapters in one batch: each row must come out as if its adapter were merged into the weights."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from goldens.adapters import (
    ALL,
    ATTENTION,
    adapter_config,
    merged_checkpoint,
    seeded_adapter,
    seeded_factors,
    write_adapter,
)
from goldens.families import CASES, Case, prompt
from goldens.seeded import seeded_checkpoint

from llmhostd.checkpoints.adapter import linear_names
from llmhostd.checkpoints.architecture import parse_architecture
from llmhostd.checkpoints.tensors import linear_shapes
from llmhostd.domain.errors import EngineError
from llmhostd.domain.model import AdapterSlots, ComputePrecision, KvPrecision, WeightFormat
from llmhostd.engines.adapter_conformance import check_adapters
from llmhostd.engines.conformance import ConformanceError
from llmhostd.engines.interface import AdaptableInstance, Engine, LoadOptions, ModuleRange
from llmhostd.engines.paged_contexts import Context, PagedContexts
from llmhostd.loader.adapter import AdapterWeights, open_adapter
from llmhostd.loader.convert import convert

BY_NAME = {case.name: case for case in CASES}
FAMILIES = [BY_NAME[name] for name in ("llama", "llama3-rope", "mistral-window", "qwen2", "qwen2-window", "qwen3")]
ROOM = AdapterSlots(slots=3, rank=6, modules=linear_names())
KINDS = {
    "plain": adapter_config(rank=6, alpha=9),
    "attention": adapter_config(rank=2, alpha=8, targets=ATTENTION, layers_to_transform=[0, 2]),
    "patterns": adapter_config(
        rank=4, alpha=8, use_rslora=True, rank_pattern={"q_proj": 1, "down_proj": 6}, alpha_pattern={"v_proj": 3}
    ),
}

LoadAdaptable = Callable[..., AdaptableInstance]


@pytest.fixture
def load_adaptable(engine: Engine, checkpoint_of: Callable[[str], Path]) -> LoadAdaptable:
    """Load a case with room for adapters, in f32 unless told otherwise."""

    def loaded(
        name: str,
        room: AdapterSlots = ROOM,
        compute: ComputePrecision = ComputePrecision.F32,
        modules: ModuleRange | None = None,
    ) -> AdaptableInstance:
        kv = KvPrecision.F32 if compute is ComputePrecision.F32 else KvPrecision.BF16
        options = LoadOptions(compute=compute, kv=kv, threads=2, modules=modules, adapters=room)
        instance = engine.load(checkpoint_of(name), options)
        assert isinstance(instance, AdaptableInstance)
        assert instance.adapter_slots == room
        return instance

    return loaded


def adapter(path: Path, case: Case, kind: str, seed: int, dtype: str = "F32") -> AdapterWeights:
    written = seeded_adapter(path / f"{case.name}-{kind}-{seed}-{dtype}", case.config, seed, dtype, KINDS[kind])
    return open_adapter(written, parse_architecture(case.config))


def every_row(contexts: PagedContexts, tokens: list[int], slot: int = -1) -> np.ndarray:
    """Logits of every position, computed alone in one prefill."""
    context = Context(tokens, slot)
    rows = contexts.step([(context, len(tokens))], sample=range(len(tokens)))
    contexts.release(context)
    return rows


@pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case.name)
def test_a_mixed_batch_equals_merged_weights(load, load_adaptable, tmp_path: Path, case: Case) -> None:
    prompts = [prompt(case, length) for length in (45, 70, 33, 9, 20)]
    slots = [0, 1, 2, -1, 0]
    kinds = list(KINDS)
    expected = []
    for tokens, slot in zip(prompts, slots, strict=True):
        merged = tmp_path / f"merged-{slot}"
        if slot < 0:
            seeded_checkpoint(merged, case.config, case.seed)
        else:
            merged_checkpoint(merged, case.config, case.seed, KINDS[kinds[slot]], adapter_seed=slot)
        expected.append(every_row(PagedContexts([load(merged)], kv_blocks=8), tokens))
    for other in (1, 2, 4):
        # Each adapter changes what the model says, by far more than the tolerance.
        base = every_row(PagedContexts([load(tmp_path / "merged--1")], kv_blocks=8), prompts[other])
        assert np.abs(base - expected[other]).max() > 0.1

    instance = load_adaptable(case.name)
    for slot, kind in enumerate(kinds):
        instance.set_adapter(slot, adapter(tmp_path, case, kind, slot))
    contexts = PagedContexts([instance], kv_blocks=16)
    running = [Context(tokens, slot) for tokens, slot in zip(prompts, slots, strict=True)]
    chunks = [40, 16, 1, 1, 9]  # two decode while the others prefill in chunks
    while live := [place for place, one in enumerate(running) if one.done < len(one.tokens)]:
        work = [(running[p], min(chunks[p], len(running[p].tokens) - running[p].done)) for p in live]
        for place, row in zip(live, contexts.step(work), strict=True):
            assert np.abs(row - expected[place][running[place].done - 1]).max() <= 1e-4


def test_slots_that_a_row_does_not_use_contribute_exactly_nothing(load_adaptable, tmp_path: Path) -> None:
    case = BY_NAME["llama"]
    one = adapter(tmp_path, case, "plain", 5)
    instance = load_adaptable("llama")
    contexts = PagedContexts([instance], kv_blocks=8)
    base = every_row(contexts, prompt(case, 40))
    instance.set_adapter(1, one)
    alone = every_row(contexts, prompt(case, 40), 1)
    assert not np.array_equal(alone, base)
    factors = seeded_factors(KINDS["plain"], parse_architecture(case.config), 6)
    huge = write_adapter(tmp_path / "huge", KINDS["plain"], {name: values * 1e37 for name, values in factors.items()})
    instance.set_adapter(0, open_adapter(huge, parse_architecture(case.config)))
    instance.set_adapter(2, adapter(tmp_path, case, "patterns", 7))
    np.testing.assert_array_equal(every_row(contexts, prompt(case, 40)), base)
    np.testing.assert_array_equal(every_row(contexts, prompt(case, 40), 1), alone)


def test_a_slot_is_filled_again_while_others_run(load_adaptable, tmp_path: Path) -> None:
    case = BY_NAME["qwen2"]
    first, second = adapter(tmp_path, case, "plain", 1), adapter(tmp_path, case, "attention", 2)
    instance = load_adaptable("qwen2")
    instance.set_adapter(0, first)
    instance.set_adapter(1, second)
    contexts = PagedContexts([instance], kv_blocks=8)
    expected, of_second = (every_row(contexts, prompt(case, 33), slot) for slot in (0, 1))
    ended = threading.Event()

    def refill() -> None:
        while not ended.is_set():
            for weights in (first, None, second):
                instance.set_adapter(2, weights)

    thread = threading.Thread(target=refill)
    thread.start()
    try:
        for _ in range(30):
            np.testing.assert_array_equal(every_row(contexts, prompt(case, 33), 0), expected)
    finally:
        ended.set()
        thread.join()
    np.testing.assert_array_equal(every_row(contexts, prompt(case, 33), 2), of_second)


def test_ranges_take_their_part(load_adaptable, tmp_path: Path) -> None:
    case = BY_NAME["llama"]
    ranges = [ModuleRange(first=0, end=1, head=False), ModuleRange(first=1, end=3, embedding=False)]
    whole, *parts = load_adaptable("llama"), *(load_adaptable("llama", modules=one) for one in ranges)
    for one in (whole, *parts):
        one.set_adapter(2, adapter(tmp_path, case, "patterns", 3))
    rows = [
        PagedContexts(chain, kv_blocks=8).greedy(prompt(case, 50), 4, 20, adapter=2)[1] for chain in ([whole], parts)
    ]
    np.testing.assert_array_equal(*rows)


def test_ranges_keep_rows_in_order(load_adaptable, tmp_path: Path) -> None:
    """A whole model may compute its rows in another one."""
    case = BY_NAME["llama"]
    ranges = [ModuleRange(first=0, end=1, head=False), ModuleRange(first=1, end=3, embedding=False)]
    whole, *parts = load_adaptable("llama"), *(load_adaptable("llama", modules=one) for one in ranges)
    for one in (whole, *parts):
        for slot in range(3):
            one.set_adapter(slot, adapter(tmp_path, case, "plain", slot))
    rows = []
    for chain in ([whole], parts):
        contexts = PagedContexts(chain, kv_blocks=8)
        running = [Context(prompt(case, 5 + slot), slot) for slot in (2, 0, 1)]
        for one in running:
            contexts.step([(one, len(one.tokens) - 1)], sample=())
        rows.append(contexts.step([(one, 1) for one in running]))
    np.testing.assert_allclose(*rows, atol=1e-4)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_stored_types_and_bf16_arithmetic(load_adaptable, tmp_path: Path, dtype: str) -> None:
    """In bf16 the root mean square error stays within 6% of the logits' spread, as it does without adapters."""
    case = BY_NAME["llama"]
    tokens = prompt(case, 40)
    exact, narrow = load_adaptable("llama"), load_adaptable("llama", compute=ComputePrecision.BF16)
    exact.set_adapter(0, adapter(tmp_path, case, "plain", 4))
    expected = every_row(PagedContexts([exact], kv_blocks=8), tokens, 0)
    exact.set_adapter(0, adapter(tmp_path, case, "plain", 4, dtype))
    stored = every_row(PagedContexts([exact], kv_blocks=8), tokens, 0)
    assert np.abs(stored - expected).max() <= {"F32": 0.0, "F16": 0.02, "BF16": 0.2}[dtype]
    narrow.set_adapter(0, adapter(tmp_path, case, "plain", 4, dtype))
    near = every_row(PagedContexts([narrow], kv_blocks=8), tokens, 0)
    assert np.sqrt(((near - expected) ** 2).mean()) <= 0.06 * expected.std()


def test_quantised_weights_take_adapters(load, engine, checkpoint_of, tmp_path: Path) -> None:
    checkpoint = tmp_path / "int8"
    convert(checkpoint_of("llama"), checkpoint, WeightFormat.INT8)
    options = LoadOptions(compute=ComputePrecision.F32, kv=KvPrecision.F32, threads=2, adapters=ROOM)
    instance = engine.load(checkpoint, options)
    config = KINDS["plain"]
    base = instance.shape.architecture
    path = write_adapter(tmp_path / "a", config, seeded_factors(config, base, 1))
    contexts, plain = PagedContexts([instance], kv_blocks=8), PagedContexts([load(checkpoint)], kv_blocks=8)
    tokens = list(range(5, 45))
    expected = every_row(plain, tokens)
    instance.set_adapter(0, open_adapter(path, base))
    np.testing.assert_allclose(every_row(contexts, tokens), expected, atol=1e-4)
    assert np.abs(every_row(contexts, tokens, 0) - expected).max() > 0.1


@pytest.mark.parametrize(
    ("config", "base", "says"),
    [
        (adapter_config(rank=7), {}, "its rank 7 does not fit into slots of rank 6"),
        (adapter_config(targets=("q_proj", "up_proj")), {}, "updates mlp.up_proj, for which this instance has no room"),
        (adapter_config(targets=("q_proj",)), {"num_hidden_layers": 4}, "is an adapter for another base"),
        (adapter_config(targets=("q_proj",)), {"hidden_size": 128}, "is an adapter for another base"),
        (adapter_config(targets=("q_proj",), alpha=1e38), {}, "too large for this precision"),
    ],
)
def test_what_does_not_fit_leaves_the_slot_empty(
    load_adaptable, tmp_path: Path, config: dict[str, Any], base: dict[str, Any], says: str
) -> None:
    case = BY_NAME["llama"]
    instance = load_adaptable("llama", AdapterSlots(slots=2, rank=6, modules=("self_attn.q_proj",)))
    architecture = parse_architecture(case.config | base)
    factors = {name: values * 100 for name, values in seeded_factors(config, architecture, 1).items()}
    weights = open_adapter(write_adapter(tmp_path / "a", config, factors), architecture)
    with pytest.raises(EngineError, match=says):
        instance.set_adapter(0, weights)
    contexts = PagedContexts([instance], kv_blocks=4)
    with pytest.raises(EngineError, match=r"names adapter slots \[0\]; not all of them hold an adapter"):
        every_row(contexts, prompt(case, 5), 0)
    with pytest.raises(EngineError, match="adapter slot 2 does not exist: there are 2"):
        instance.set_adapter(2, None)


@pytest.mark.parametrize(("compute", "tolerance"), [(ComputePrecision.F32, 1e-4), (ComputePrecision.BF16, 0.1)])
def test_an_adapter_that_computes_no_numbers_spoils_nobody_elses(
    load_adaptable, tmp_path: Path, compute: ComputePrecision, tolerance: float
) -> None:
    case, config = BY_NAME["llama"], KINDS["plain"]
    instance = load_adaptable("llama", compute=compute)
    base = instance.shape.architecture
    factors = {name: values * np.float32(1e25) for name, values in seeded_factors(config, base, 1).items()}
    instance.set_adapter(0, open_adapter(write_adapter(tmp_path / "a", config, factors), base))
    contexts, tokens = PagedContexts([instance], kv_blocks=4), prompt(case, 50)
    expected = every_row(contexts, tokens)[-1]
    bad, good = Context(prompt(case, 40), 0), Context(tokens)
    beside = contexts.step([(bad, 40), (good, 50)])
    assert np.isnan(beside[0]).any()
    np.testing.assert_allclose(beside[1], expected, atol=tolerance)
    # Nor whoever has its blocks next.
    for one in (good, bad):
        contexts.release(one)
    np.testing.assert_allclose(contexts.step([(Context(tokens), 50)])[0], expected, atol=tolerance)


class Spoiled:
    """An engine with one fault."""

    def __init__(self, engine: Engine, spoil: Callable[[Any], None]) -> None:
        self._engine, self._spoil = engine, spoil

    def facts(self):
        return self._engine.facts()

    def load(self, checkpoint, options):
        instance = self._engine.load(checkpoint, options)
        self._spoil(instance)
        return instance


def sound(instance: Any) -> None:
    """No fault."""


def gives_everybody_the_first_adapter(instance: Any) -> None:
    run = instance.run

    def wrong(iteration):
        iteration.adapters = np.full(len(iteration.adapters), iteration.adapters[0])
        return run(iteration)

    instance.run = wrong


def keeps_what_a_slot_held(instance: Any) -> None:
    set_adapter, seen = instance.set_adapter, set()

    def wrong(slot, weights):
        if slot not in seen or weights is None:
            set_adapter(slot, weights)
        seen.add(slot)

    instance.set_adapter = wrong


def takes_empty_slots_for_none(instance: Any) -> None:
    run = instance.run

    def wrong(iteration):
        iteration.adapters = np.where(iteration.adapters > 1, -1, iteration.adapters)
        return run(iteration)

    instance.run = wrong


@pytest.mark.parametrize(
    ("spoil", "clause"),
    [
        (sound, ""),
        (gives_everybody_the_first_adapter, "each row has its own adapter or none: a row of slot -1"),
        (keeps_what_a_slot_held, "a slot that is filled again forgets what it held"),
        (takes_empty_slots_for_none, "a slot that is filled again forgets what it held"),
    ],
)
def test_the_contract(engine: Engine, checkpoint_of, tmp_path: Path, spoil, clause: str) -> None:
    case = BY_NAME["llama"]
    options = LoadOptions(compute=ComputePrecision.F32, kv=KvPrecision.F32, threads=2)
    two = adapter(tmp_path, case, "plain", 1), adapter(tmp_path, case, "attention", 2)
    if not clause:
        assert len(check_adapters(engine, checkpoint_of("llama"), options, two)) == 6
        return
    with pytest.raises(ConformanceError) as caught:
        check_adapters(Spoiled(engine, spoil), checkpoint_of("llama"), options, two)
    assert str(caught.value).startswith(clause)


def test_room_is_asked_for(load, load_adaptable, tmp_path: Path) -> None:
    case = BY_NAME["llama"]
    plain, roomy = load("llama"), load_adaptable("llama")
    assert plain.adapter_slots is None
    architecture = parse_architecture(case.config)
    per_rank = sum(outputs + inputs for outputs, inputs in linear_shapes(architecture).values())
    assert roomy.held_bytes() - plain.held_bytes() == 4 * architecture.layers * per_rank * 3 * 6
    with pytest.raises(EngineError, match="loaded without room for adapters"):
        plain.set_adapter(0, adapter(tmp_path, case, "plain", 1))
    with pytest.raises(EngineError, match="loaded without room for adapters"):
        every_row(PagedContexts([plain], kv_blocks=4), prompt(case, 5), 0)
    for room, says in (
        (AdapterSlots(slots=0, rank=4, modules=ALL), "adapters need slots"),
        (AdapterSlots(slots=1, rank=4, modules=("q_proj",)), "adapters cannot update q_proj; known: self_attn.q_proj"),
    ):
        with pytest.raises(EngineError, match=says):
            load_adaptable("llama", room)


@pytest.mark.parametrize(
    "rows",
    [
        [2, 0, 1, 3],
        [1, -1],
        [5, 1, 0, 3, 4],
        [-1, 6, 5, 7, -1],
        [7, 6, 5, 4, 3, 2, 1, 0],
        [3, 2, 1, 7, 4, 5, 0],
        [0, 7],
        [4, 4, 5],
        [6],
    ],
    ids=str,
)
def test_single_tokens_of_many_adapters_in_any_order(load_adaptable, tmp_path: Path, rows: list[int]) -> None:
    case = BY_NAME["llama"]
    instance = load_adaptable("llama", AdapterSlots(slots=8, rank=6, modules=linear_names()))
    for slot in range(8):
        instance.set_adapter(slot, adapter(tmp_path, case, "plain", slot))
    contexts = PagedContexts([instance], kv_blocks=24)
    prompts = [prompt(case, 5 + place) for place in range(len(rows))]
    alone = [contexts.greedy(tokens, 3, adapter=slot) for tokens, slot in zip(prompts, rows, strict=True)]
    running = [Context(tokens, slot) for tokens, slot in zip(prompts, rows, strict=True)]
    for one in running:
        contexts.step([(one, len(one.tokens))], sample=())
    for step in range(2):
        for one, (tokens, _) in zip(running, alone, strict=True):
            one.tokens.append(tokens[step])
        logits = contexts.step([(one, 1) for one in running])
        for row, (_, expected) in zip(logits, alone, strict=True):
            np.testing.assert_allclose(row, expected[step + 1], atol=1e-4)
    some = list(range(len(rows)))[::-2]
    for one, (tokens, _) in zip(running, alone, strict=True):
        one.tokens.append(tokens[2])
    everything = contexts.step([(one, 1) for one in running])
    for one in running:
        one.done -= 1
    np.testing.assert_allclose(contexts.step([(one, 1) for one in running], sample=some), everything[some], atol=1e-5)
