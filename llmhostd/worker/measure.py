"""How long do iterations of a model take here? (2^x samples, SLINFER §VI-B.)

Iterations of requests that do not exist, through the same batch and the same engine as real ones. Which of them are
timed is found out on the way (`compute.grid_sampler`, `compute.dense_sampler`); when, is the node mind's to say.

A machine has moods that last longer than one sample: others use its cores, or its memory. So all are timed once more
at the end, and what is between the two times counts: iterations will meet either mood. Where they are far from each
other something disturbed one of them, so a third time decides.
"""

import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import NamedTuple

import msgspec

from llmhostd.compute.dense_sampler import DenseSampler
from llmhostd.compute.grid_sampler import GridSampler, GridSamplingPolicy, Near, Point
from llmhostd.compute.model_choice import check_loads
from llmhostd.compute.profile_grid import grid_for
from llmhostd.domain.profile import CheckSample, DecodeSample, DenseSample, PrefillSample
from llmhostd.engines.batch import Part, flatten
from llmhostd.engines.runner import Runner
from llmhostd.node.kv_pools import MEASURING_KV_BYTES


@dataclass(frozen=True, slots=True)
class MeasurePolicy:
    """How much one sample may take."""

    kv_bytes: int = MEASURING_KV_BYTES
    """KV that a sample may fill, as far as the pool has it. Beyond it the imagined requests share blocks: this is more
    than caches hold, so they are read at the speed of memory all the same."""
    repeats: int = 4
    """Runs of a sample at most; the second fastest counts: what disturbs a run only makes it slower..."""
    agree: float = 0.05
    """...and no more runs are needed once the two fastest differ by no more than this share..."""
    enough_s: float = 0.25
    """...or when they took longer than this together."""
    disturbed: float = 0.15
    """Times of one sample that differ by more than this share are decided by a third."""
    grids: GridSamplingPolicy = field(default_factory=GridSamplingPolicy)


Rows = Sequence[tuple[int, int]]
"""(past, chunk) of every request of an iteration."""


class _Timed(NamedTuple):
    rows: Rows
    seconds: tuple[float, ...]
    learn: Callable[[float], None]


class Measurement:
    """Goes from sample to sample; three stages: enough to serve with, both grids, the rest and all once more."""

    def __init__(self, runner: Runner, policy: MeasurePolicy) -> None:
        self._runner, self._policy = runner, policy
        grid = grid_for(runner.instance.shape)
        self._prefill = GridSampler(grid.chunks, grid.pasts, Near((8, 32, 128), 256), policy.grids)
        self._decode = GridSampler(grid.batches, grid.contexts, Near((1, 8), 1024), policy.grids)
        self._dense: DenseSampler | None = None
        self.checks: list[CheckSample] = []
        self._to_check = check_loads(runner.instance.shape)
        self._once_more: deque[_Timed] = deque()
        self.done = 0
        """Samples run."""
        self.stage_ended = False
        """Whether the last sample ended a stage: what was measured so far is enough to plan with."""

    @property
    def total(self) -> int:
        """Samples of all stages, as it looks now."""
        dense = self._dense.left if self._dense else 4
        checks = len(self._to_check) - len(self.checks)
        first = self._prefill.left + self._decode.left + dense + checks
        return self.done + 2 * first + len(self._once_more)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to measure."""
        return len(self.checks) == len(self._to_check) and not self._once_more

    @property
    def prefill(self) -> tuple[PrefillSample, ...]:
        """The full grid of what is known of chunks."""
        return tuple(
            PrefillSample(chunk_tokens=chunk, past_tokens=past, seconds=seconds)
            for (chunk, past), seconds in self._prefill.grid().items()
        )

    @property
    def decode(self) -> tuple[DecodeSample, ...]:
        """The full grid of what is known of batches."""
        return tuple(
            DecodeSample(batch=batch, context_tokens=context, seconds=seconds)
            for (batch, context), seconds in self._decode.grid().items()
        )

    @property
    def dense(self) -> tuple[DenseSample, ...]:
        """What was timed of dense computation between the points of the grid."""
        return self._dense.samples if self._dense else ()

    def sample(self) -> None:
        """Measure what is next.

        Raises EngineError as the engine does, or when requests own all KV there is.
        """
        if self._near():
            self.stage_ended = self._prefill.near() is self._decode.near() is None
        elif self._far():
            self.stage_ended = self._prefill.wanted() is self._decode.wanted() is None
        elif self._steps():
            self.stage_ended = False
        else:
            if len(self.checks) < len(self._to_check):
                self._check(self._to_check[len(self.checks)])
            else:
                self._time_again(self._once_more.popleft())
            self.stage_ended = self.complete
        self.done += 1

    def _near(self) -> bool:
        """Time a point that is enough to serve with; False: none is left."""
        return self._time_chunk(self._prefill.near()) or self._time_batch(self._decode.near())

    def _far(self) -> bool:
        """Time a point of the grids; False: they are known well enough."""
        return self._time_chunk(self._prefill.wanted()) or self._time_batch(self._decode.wanted())

    def _steps(self) -> bool:
        """Time a step of dense computation; False: none is left."""
        if self._dense is None:
            alone = {chunk: seconds for (chunk, past), seconds in self._prefill.grid().items() if not past}
            self._dense = DenseSampler(max(alone), known=alone)
        tokens = self._dense.wanted()
        if tokens is not None:
            self._time([(0, tokens)], partial(self._dense.learned, tokens))
        return tokens is not None

    def _time_chunk(self, point: Point | None) -> bool:
        if point is not None:
            chunk, past = point
            self._time([(past, chunk)], partial(self._prefill.learned, point))
        return point is not None

    def _time_batch(self, point: Point | None) -> bool:
        if point is not None:
            batch, context = point
            self._time([(context - 1, 1)] * batch, partial(self._decode.learned, point))
        return point is not None

    def _check(self, load: CheckSample) -> None:
        rows = [(past, chunk) for chunk, past in load.prefill] + [(max(load.context_tokens - 1, 0), 1)] * load.batch
        place = len(self.checks)
        self.checks.append(load)
        self._time(rows, lambda seconds: self._checked(place, seconds))

    def _checked(self, place: int, seconds: float) -> None:
        self.checks[place] = msgspec.structs.replace(self.checks[place], seconds=seconds)

    def _time(self, rows: Rows, learn: Callable[[float], None]) -> None:
        seconds = self._typical_s(rows)
        learn(seconds)
        self._once_more.append(_Timed(rows, (seconds,), learn))

    def _time_again(self, one: _Timed) -> None:
        seconds = (*one.seconds, self._typical_s(one.rows))
        one.learn(median(seconds))
        if len(seconds) == 2 and not _agreed(seconds, self._policy.disturbed):
            self._once_more.append(one._replace(seconds=seconds))

    def _typical_s(self, rows: Rows) -> float:
        policy = self._policy
        seconds = sorted(self.time_rows(rows, policy.repeats, policy.enough_s, policy.agree))
        return seconds[min(1, len(seconds) - 1)]

    def time_rows(self, rows: Rows, repeats: int, enough_s: float, agree: float = -1.0) -> list[float]:
        """Seconds of iterations with these (past, chunk) rows, the last token of each sampled.

        As many as `repeats`, unless they take `enough_s` together before, or the two fastest differ by no more than
        `agree` of the time. An engine prepares itself anew when the count of tokens changes, as it does with nearly
        every chunk that is served, and not from one decode to the next: so one token is computed ahead of each chunk.
        Raises EngineError as the engine does.
        """
        instance = self._runner.instance
        needed = [-(-(past + chunk) // instance.block_tokens) for past, chunk in rows]
        most = max(self._policy.kv_bytes // instance.kv_bytes_per_block, 1)
        seconds: list[float] = []
        with self._runner.borrow_blocks(min(sum(needed), most)) as blocks:
            # Pages that were never written are all the same page, which stays in the nearest cache.
            instance.resize_kv(instance.kv_blocks, [(blocks[0], block) for block in blocks])
            parts, other = _parts(rows, needed, blocks), _parts([(0, 1)], [1], blocks)
            chunked = any(chunk > 1 for _, chunk in rows)
            while len(seconds) < repeats and sum(seconds) < enough_s and not _agreed(seconds, agree):
                if chunked:
                    instance.run(flatten(other, instance.block_tokens))
                began_s = time.perf_counter()
                instance.run(flatten(parts, instance.block_tokens)).argmax(axis=1)
                seconds.append(time.perf_counter() - began_s)
        return seconds


def _agreed(seconds: Sequence[float], agree: float) -> bool:
    """Whether the two fastest of several runs are alike."""
    fastest = sorted(seconds)[:2]
    return len(fastest) == 2 and fastest[1] - fastest[0] <= agree * fastest[0]


def _parts(rows: Rows, needed: Sequence[int], blocks: "array[int]") -> list[Part]:
    """Give every row its own blocks as far as there are any, then begin again with the first."""
    context = array("q", bytes(8 * max(past + chunk for past, chunk in rows)))
    repeated = blocks * (2 + max(needed) // len(blocks))
    parts: list[Part] = []
    begin = 0
    for (past, chunk), count in zip(rows, needed, strict=True):
        parts.append((context, repeated[begin : begin + count], past, chunk, True))
        begin = (begin + count) % len(blocks)
    return parts
