"""Does an engine keep the contract of `engines.interface`?

For authors of plugins: `check_engine` runs a small checkpoint through every clause and raises ConformanceError with the
first one that is broken. It compares the engine with itself (split, mixed, moved, in ranges), so it needs no golden
answers; those are for the engine's own tests.
"""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from llmhostd.domain.errors import CheckpointError, EngineError
from llmhostd.engines.interface import Engine, EngineInstance, Floats, LoadOptions, ModuleRange
from llmhostd.engines.paged_contexts import Context, PagedContexts

_TOLERANCE = 1e-3
"""Largest difference of logits between two ways to compute the same, in f32."""


class ConformanceError(EngineError):
    """An engine breaks a clause of the contract."""


def check_engine(engine: Engine, checkpoint: Path, options: LoadOptions, tolerance: float = _TOLERANCE) -> list[str]:
    """Check every clause with the model at `checkpoint`; it needs at least two layers. Returns the clauses' names.

    `options.modules` is ignored. Give exact precisions (f32 for both), or a tolerance that fits the precision.
    """
    whole = LoadOptions(compute=options.compute, kv=options.kv, threads=options.threads)
    check = _Check(engine, checkpoint, whole, tolerance)
    clauses: dict[str, Callable[[], None]] = {
        "facts name the engine": check.facts,
        "a loaded instance is empty and knows its sizes": check.sizes,
        "results have the promised shapes": check.results,
        "a chunked prefill equals a whole one": check.chunked,
        "a row does not depend on its neighbours": check.mixed,
        "a resize keeps and moves blocks": check.resized,
        "an impossible resize changes nothing": check.impossible,
        "ranges in a row equal the whole": check.ranges,
        "a load beside a run disturbs nothing": check.loaded_beside,
        "a broken checkpoint is a CheckpointError": check.broken,
        "an unload ends it": check.unload,
    }
    for clause, run in clauses.items():
        try:
            run()
        except ConformanceError as error:
            raise ConformanceError(f"{clause}: {error}") from error
    return list(clauses)


class _Check:
    """The clauses, over one loaded instance."""

    def __init__(self, engine: Engine, checkpoint: Path, options: LoadOptions, tolerance: float) -> None:
        self._engine, self._checkpoint, self._options, self._tolerance = engine, checkpoint, options, tolerance
        self._instance = engine.load(checkpoint, options)
        self._vocab = self._instance.shape.architecture.vocab
        self._length = 2 * self._instance.block_tokens + 7

    def facts(self) -> None:
        facts = self._engine.facts()
        require(bool(facts.name and facts.version), "name or version is empty")
        require(self._options.compute in facts.compute, f"compute does not list {self._options.compute}")

    def sizes(self) -> None:
        one = self._instance
        require(one.kv_blocks == 0, f"kv_blocks is {one.kv_blocks} before the first resize")
        require(
            one.block_tokens > 0 and one.kv_bytes_per_block > 0, "block_tokens or kv_bytes_per_block is not above 0"
        )
        warm = one.held_bytes()
        contexts = self._contexts(one)
        contexts.greedy(self._prompt(5), 1)
        require(0 <= warm <= one.held_bytes(), "held_bytes shrank by running")

    def results(self) -> None:
        contexts = self._contexts(self._instance)
        work = [(Context(self._prompt(9)), 9), (Context(self._prompt(4)), 4)]
        iteration = contexts.iteration(work, sample=(12, 3, 8))
        rows = self._instance.run(iteration)
        require(rows.shape == (3, self._vocab), f"logits have shape {rows.shape}, not (3, {self._vocab})")
        require(rows.dtype == np.float32, f"logits are {rows.dtype}, not float32")
        require(bool(np.isfinite(rows).all()), "logits are not finite")
        none = contexts.iteration(work, sample=())
        require(self._instance.run(none).shape == (0, self._vocab), "an iteration that samples nothing returns rows")

    def chunked(self) -> None:
        contexts = self._contexts(self._instance)
        expected = self._alone(contexts, self._prompt(self._length))[-1]
        for chunk in (1, 7, self._instance.block_tokens, self._length - 1):
            _, rows = contexts.greedy(self._prompt(self._length), 1, chunk)
            self._equal(rows[0], expected, f"in chunks of {chunk}")

    def mixed(self) -> None:
        contexts = self._contexts(self._instance)
        prompts = [self._prompt(length) for length in (self._length, 3, self._instance.block_tokens)]
        expected = [self._alone(contexts, tokens) for tokens in prompts]
        running = [Context(tokens) for tokens in prompts]
        steps = (20, 1, 9)
        while any(one.done < len(one.tokens) for one in running):
            places = [place for place, one in enumerate(running) if one.done < len(one.tokens)]
            work = [(running[p], min(steps[p], len(running[p].tokens) - running[p].done)) for p in places]
            for place, row in zip(places, contexts.step(work), strict=True):
                self._equal(row, expected[place][running[place].done - 1], f"request {place}")

    def resized(self) -> None:
        contexts = self._contexts(self._instance)
        expected_tokens, expected = contexts.greedy(self._prompt(self._length), 5)
        filler, context = Context(self._prompt(self._length)), Context(self._prompt(self._length))
        contexts.resize(32)
        contexts.step([(filler, self._length)])
        rows = [contexts.step([(context, self._length)])[0]]
        contexts.release(filler)
        for blocks in (64, 3, 3, 40):
            contexts.resize(blocks)
            require(self._instance.kv_blocks == blocks, f"kv_blocks is {self._instance.kv_blocks}, not {blocks}")
            context.tokens.append(expected_tokens[len(rows) - 1])
            rows.append(contexts.step([(context, 1)])[0])
        self._equal(np.stack(rows), expected, "after resizes")

    def impossible(self) -> None:
        self._instance.resize_kv(4)
        for blocks, moves in ((-1, ()), (2, ((9, 0),)), (2, ((3, 2),))):
            expect(EngineError, partial(self._instance.resize_kv, blocks, moves), f"resize to {blocks} {moves}")
            require(self._instance.kv_blocks == 4, "a refused resize changed kv_blocks")

    def ranges(self) -> None:
        layers = self._instance.shape.architecture.layers
        lower = self._load(ModuleRange(first=0, end=layers // 2, head=False))
        upper = self._load(ModuleRange(first=layers // 2, end=layers, embedding=False))
        split = PagedContexts([lower, upper], kv_blocks=8)
        tokens, rows = split.greedy(self._prompt(self._length), 3, chunk=30)
        expected_tokens, expected = self._contexts(self._instance).greedy(self._prompt(self._length), 3, chunk=30)
        self._equal(rows, expected, f"split at layer {layers // 2}")
        require(tokens == expected_tokens, "other tokens")
        for one in (lower, upper):
            one.unload()

    def loaded_beside(self) -> None:
        contexts = self._contexts(self._instance)
        _, expected = contexts.greedy(self._prompt(self._length), 3)
        failures: list[Exception] = []

        def load() -> None:
            try:
                self._engine.load(self._checkpoint, self._options).unload()
            except Exception as error:  # noqa: BLE001 - whatever it is, it breaks the clause
                failures.append(error)

        thread = threading.Thread(target=load)
        thread.start()
        while thread.is_alive():
            self._equal(contexts.greedy(self._prompt(self._length), 3)[1], expected, "while another loads")
        thread.join()
        require(not failures, f"the load failed: {failures[:1]}")

    def broken(self) -> None:
        nowhere = self._checkpoint / "not-a-checkpoint"
        expect(CheckpointError, partial(self._engine.load, nowhere, self._options), "a load from nowhere")

    def unload(self) -> None:
        self._instance.unload()

    def _load(self, modules: ModuleRange) -> EngineInstance:
        o = self._options
        options = LoadOptions(compute=o.compute, kv=o.kv, threads=o.threads, modules=modules)
        return self._engine.load(self._checkpoint, options)

    @staticmethod
    def _contexts(instance: EngineInstance) -> PagedContexts:
        return PagedContexts([instance], kv_blocks=16)

    def _prompt(self, length: int) -> list[int]:
        return [1 + (place * place * 7 + place * 3 + length) % (self._vocab - 1) for place in range(length)]

    def _alone(self, contexts: PagedContexts, tokens: Sequence[int]) -> Floats:
        context = Context(tokens)
        rows = contexts.step([(context, len(tokens))], sample=range(len(tokens)))
        contexts.release(context)
        return rows

    def _equal(self, rows: Floats, expected: Floats, what: str) -> None:
        worst = float(np.abs(rows - expected).max())
        require(worst <= self._tolerance, f"{what}: logits differ by {worst:.6f}, at most {self._tolerance} is allowed")


def require(kept: bool, otherwise: str) -> None:
    """Raise ConformanceError unless a clause is kept."""
    if not kept:
        raise ConformanceError(otherwise)


def expect(kind: type[Exception], call: Callable[[], object], what: str) -> None:
    """Raise ConformanceError unless a call raises `kind`."""
    try:
        call()
    except kind:
        return
    except Exception as error:
        raise ConformanceError(f"{what} raised {type(error).__name__}, not {kind.__name__}") from error
    raise ConformanceError(f"{what} was accepted")
