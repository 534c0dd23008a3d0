"""How long do iterations of a model take here? (2^x samples, SLINFER §VI-B.)

Iterations of requests that do not exist, through the same batch and the same engine as real ones. What to measure, and
in which order, is `compute.profile_grid`; when, is the node mind's.
"""

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

import msgspec

from llmhostd.compute.dense_sampler import DenseSampler
from llmhostd.compute.model_choice import check_loads
from llmhostd.compute.profile_grid import GridPoint, GridPolicy, PrefillPoint, grid_for
from llmhostd.domain.profile import CheckSample, DecodeSample, PrefillSample
from llmhostd.engines.batch import Part, flatten
from llmhostd.engines.runner import Runner
from llmhostd.node.kv_pools import MEASURING_KV_BYTES


@dataclass(frozen=True, slots=True)
class MeasurePolicy:
    """How much one sample may take."""

    kv_bytes: int = MEASURING_KV_BYTES
    """KV that a sample may fill, as far as the pool has it. Beyond it the imagined requests share blocks: this is more
    than caches hold, so they are read at the speed of memory all the same."""
    repeats: int = 3
    """Runs of a sample, of which the median counts..."""
    enough_s: float = 0.2
    """...unless they take longer than this together."""


class Measurement:
    """Goes through the grid, one sample per call."""

    def __init__(self, runner: Runner, policy: MeasurePolicy) -> None:
        grid = grid_for(runner.instance.shape)
        self._runner = runner
        self._policy = policy
        self._coarse = len(grid.coarse)
        self._points: tuple[GridPoint, ...] = (*grid.coarse, *grid.fine)
        self.prefill: list[PrefillSample] = []
        self.decode: list[DecodeSample] = []
        longest = runner.instance.shape.architecture.max_context_tokens
        self.dense = DenseSampler(min(GridPolicy().most_chunk_tokens, longest))
        self.checks: list[CheckSample] = []
        self._to_check = check_loads(runner.instance.shape)

    @property
    def done(self) -> int:
        """Samples measured."""
        return self._gridded + len(self.dense.samples) + len(self.checks)

    @property
    def total(self) -> int:
        """Samples of all stages, at most."""
        return len(self._points) + len(self.dense.samples) + self.dense.left + len(self._to_check)

    @property
    def stage_ended(self) -> bool:
        """Whether what was measured so far are full grids, coarse or fine, or all there is."""
        gridded = self._gridded in (self._coarse, len(self._points))
        return self.complete or (gridded and not self.dense.samples)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to measure."""
        return len(self.checks) == len(self._to_check)

    @property
    def _gridded(self) -> int:
        return len(self.prefill) + len(self.decode)

    def sample(self) -> None:
        """Measure what is next: a point of the grids, a step of the dense modules, a check.

        Raises EngineError as the engine does, or when requests own all KV there is.
        """
        if self._gridded < len(self._points):
            self._sample_grid(self._points[self._gridded])
        elif (tokens := self.dense.wanted()) is not None:
            self.dense.learned(tokens, self._median_s([(0, tokens)]))
        else:
            self._check(self._to_check[len(self.checks)])

    def _check(self, load: CheckSample) -> None:
        rows = [(past, chunk) for chunk, past in load.prefill] + [(max(load.context_tokens - 1, 0), 1)] * load.batch
        self.checks.append(msgspec.structs.replace(load, seconds=self._median_s(rows)))

    def _median_s(self, rows: Sequence[tuple[int, int]]) -> float:
        return median_low(self.time_rows(rows, self._policy.repeats, self._policy.enough_s))

    def _sample_grid(self, point: GridPoint) -> None:
        if isinstance(point, PrefillPoint):
            rows = [(point.past_tokens, point.chunk_tokens)]
        else:
            rows = [(point.context_tokens - 1, 1)] * point.batch
        seconds = self._median_s(rows)
        if isinstance(point, PrefillPoint):
            chunk, past = point.chunk_tokens, point.past_tokens
            self.prefill.append(PrefillSample(chunk_tokens=chunk, past_tokens=past, seconds=seconds))
        else:
            batch, context = point.batch, point.context_tokens
            self.decode.append(DecodeSample(batch=batch, context_tokens=context, seconds=seconds))

    def time_rows(self, rows: Sequence[tuple[int, int]], repeats: int, enough_s: float) -> list[float]:
        """Seconds of iterations with these (past, chunk) rows, the last token of each sampled.

        As many as `repeats`, unless they take `enough_s` together before. Raises EngineError as the engine does.
        """
        instance = self._runner.instance
        needed = [-(-(past + chunk) // instance.block_tokens) for past, chunk in rows]
        most = max(self._policy.kv_bytes // instance.kv_bytes_per_block, 1)
        seconds: list[float] = []
        with self._runner.borrow_blocks(min(sum(needed), most)) as blocks:
            # Pages that were never written are all the same page, which stays in the nearest cache.
            instance.resize_kv(instance.kv_blocks, [(blocks[0], block) for block in blocks])
            parts = _parts(rows, needed, blocks)
            while len(seconds) < repeats and sum(seconds) < enough_s:
                began_s = time.perf_counter()
                instance.run(flatten(parts, instance.block_tokens)).argmax(axis=1)
                seconds.append(time.perf_counter() - began_s)
        return seconds


def _parts(rows: Sequence[tuple[int, int]], needed: Sequence[int], blocks: "array[int]") -> list[Part]:
    """Give every row its own blocks as far as there are any, then begin again with the first."""
    context = array("q", bytes(8 * max(past + chunk for past, chunk in rows)))
    repeated = blocks * (2 + max(needed) // len(blocks))
    parts: list[Part] = []
    begin = 0
    for (past, chunk), count in zip(rows, needed, strict=True):
        parts.append((context, repeated[begin : begin + count], past, chunk, True))
        begin = (begin + count) % len(blocks)
    return parts
