"""Does an engine that takes adapters keep that part of the contract?

For authors of plugins, beside `engines.conformance`: the engine is compared with itself. That an adapter computes what
merged weights would needs golden answers; those are for the engine's own tests.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from llmhostd.checkpoints.adapter import linear_names
from llmhostd.domain.errors import EngineError
from llmhostd.domain.model import AdapterSlots
from llmhostd.engines.conformance import ConformanceError, expect, require
from llmhostd.engines.interface import AdaptableInstance, Engine, Floats, LoadOptions
from llmhostd.engines.paged_contexts import Context, PagedContexts
from llmhostd.loader.adapter import AdapterWeights

_TOLERANCE = 1e-3
_TOKENS = 23


def check_adapters(
    engine: Engine,
    checkpoint: Path,
    options: LoadOptions,
    adapters: tuple[AdapterWeights, AdapterWeights],
    tolerance: float = _TOLERANCE,
) -> list[str]:
    """Check every clause with a model and two of its adapters that differ. Returns the clauses' names.

    `options.modules` and `options.adapters` are ignored. Give exact precisions (f32), or a tolerance that fits.
    """
    if not engine.facts().adapters:
        raise ConformanceError("the engine's facts say that it takes no adapters")
    check = _Check(engine, checkpoint, options, adapters, tolerance)
    clauses: dict[str, Callable[[], None]] = {
        "an instance has the slots it was loaded with": check.room,
        "empty slots change nothing": check.empty,
        "each row has its own adapter or none": check.mixed,
        "a slot that is filled again forgets what it held": check.refilled,
        "an empty slot is an EngineError": check.unfilled,
        "an adapter that does not fit is an EngineError": check.too_wide,
    }
    for clause, run in clauses.items():
        try:
            run()
        except ConformanceError as error:
            raise ConformanceError(f"{clause}: {error}") from error
    check.unload()
    return list(clauses)


class _Check:
    """The clauses, over an instance with three slots and one without any."""

    def __init__(
        self,
        engine: Engine,
        checkpoint: Path,
        options: LoadOptions,
        adapters: tuple[AdapterWeights, AdapterWeights],
        tolerance: float,
    ) -> None:
        self._engine, self._checkpoint, self._adapters, self._tolerance = engine, checkpoint, adapters, tolerance
        self._options = options
        rank = max(one.adapter.rank for one in adapters)
        self._instance = self._load(AdapterSlots(slots=3, rank=rank, modules=linear_names()))
        plain = engine.load(checkpoint, self._with(None))
        self._base = self._rows(PagedContexts([plain], kv_blocks=8), -1)
        plain.unload()
        self._contexts = PagedContexts([self._instance], kv_blocks=16)

    def room(self) -> None:
        slots = self._instance.adapter_slots
        require(slots is not None and slots.slots == 3, f"adapter_slots is {slots}")

    def empty(self) -> None:
        self._equal(self._rows(self._contexts, -1), self._base, "a row without an adapter")

    def mixed(self) -> None:
        for slot, weights in enumerate(self._adapters):
            self._instance.set_adapter(slot, weights)
        alone = {slot: self._rows(self._contexts, slot) for slot in (0, 1)} | {-1: self._base}
        for first, second in ((0, -1), (1, -1), (0, 1)):
            differ = np.abs(alone[first] - alone[second]).max() > self._tolerance
            require(bool(differ), f"slots {first} and {second} compute the same")
        running = [Context(self._prompt(), slot) for slot in (1, -1, 0, 1)]
        for counts in ((9, 5, 1, 20), (1, 1, 22, 1), (1, 8, 0, 2), (12, 9, 0, 0)):
            work = [(one, count) for one, count in zip(running, counts, strict=True) if count]
            for (one, _), row in zip(work, self._contexts.step(work), strict=True):
                self._equal(row, alone[one.adapter][one.done - 1], f"a row of slot {one.adapter}")
        for one in running:
            self._contexts.release(one)

    def refilled(self) -> None:
        expected = self._rows(self._contexts, 1)
        self._instance.set_adapter(2, self._adapters[0])
        self._instance.set_adapter(2, self._adapters[1])
        self._equal(self._rows(self._contexts, 2), expected, "a slot that held another adapter before")

    def unfilled(self) -> None:
        self._instance.set_adapter(2, None)
        for slot in (2, 3):
            expect(EngineError, partial(self._rows, self._contexts, slot), f"an iteration with slot {slot}")
        self._equal(self._rows(self._contexts, -1), self._base, "a row without an adapter")

    def too_wide(self) -> None:
        narrow = self._load(AdapterSlots(slots=1, rank=1, modules=linear_names()))
        one = max(self._adapters, key=lambda weights: weights.adapter.rank)
        require(one.adapter.rank > 1, "to check this, one of the adapters must have a rank above 1")
        expect(EngineError, partial(narrow.set_adapter, 0, one), "an adapter of a larger rank than the slots'")
        narrow.unload()

    def unload(self) -> None:
        self._instance.unload()

    def _load(self, slots: AdapterSlots) -> AdaptableInstance:
        instance = self._engine.load(self._checkpoint, self._with(slots))
        if not isinstance(instance, AdaptableInstance):
            raise ConformanceError("an instance lacks adapter_slots or set_adapter")
        return instance

    def _with(self, slots: AdapterSlots | None) -> LoadOptions:
        o = self._options
        return LoadOptions(compute=o.compute, kv=o.kv, threads=o.threads, adapters=slots)

    def _prompt(self) -> Sequence[int]:
        vocab = self._instance.shape.architecture.vocab
        return [1 + (place * place * 7 + place * 3) % (vocab - 1) for place in range(_TOKENS)]

    def _rows(self, contexts: PagedContexts, slot: int) -> Floats:
        context = Context(self._prompt(), slot)
        try:
            return contexts.step([(context, _TOKENS)], sample=range(_TOKENS))
        finally:
            contexts.release(context)

    def _equal(self, rows: Floats, expected: Floats, what: str) -> None:
        worst = float(np.abs(rows - expected).max())
        require(worst <= self._tolerance, f"{what}: logits differ by {worst:.6f}, at most {self._tolerance} is allowed")
