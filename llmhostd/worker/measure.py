"""How long do iterations of a model take here? (2^x samples, SLINFER §VI-B.)

Iterations of requests that do not exist, through the same batch and the same engine as real ones. Which of them are
timed is found out on the way (`compute.grid_sampler`, `compute.dense_sampler`); when, is the node mind's to say.

A machine has moods that last longer than one sample: others use its cores, or its memory. So all are timed once more
at the end, and what is between the two times counts: iterations will meet either mood. Where they are far from each
other something disturbed one of them, so a third time decides.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import msgspec

from llmhostd.compute.dense_sampler import DenseSampler
from llmhostd.compute.grid_sampler import GridSampler, GridSamplingPolicy, Near, Point
from llmhostd.compute.model_choice import check_loads
from llmhostd.compute.profile_grid import grid_for
from llmhostd.domain.profile import CheckSample, DecodeSample, DenseSample, PrefillSample
from llmhostd.engines.runner import Runner
from llmhostd.node.kv_pools import MEASURING_KV_BYTES
from llmhostd.worker.timing import Rows, Stopwatch


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
    enough_first_s: float = 0.05
    """The same of samples that somebody waits for, as they are enough to serve with. What was run in such haste counts
    only until it is timed again: the first run of another count of tokens is a slow one."""
    most_broken_off: int = 8
    """A sample whose run ended so often because somebody came is run to its end."""
    disturbed: float = 0.15
    """Times of one sample that differ by more than this share are decided by a third."""
    grids: GridSamplingPolicy = field(default_factory=GridSamplingPolicy)


@dataclass(slots=True)
class _Sample:
    """A load that is timed, by several runs."""

    rows: Rows
    learn: Callable[[float], None]
    ends_stage: Callable[[], bool]
    """Whether it was the last of its stage, once it was learned from."""
    enough_s: float
    """It takes no more runs once they took so long together."""
    earlier: tuple[float, ...] = ()
    """What it took before."""
    runs: list[float] = field(default_factory=list)
    broken_off: int = 0


class Measurement:
    """From sample to sample, run by run. Three stages: enough to serve with, both grids, the rest and all again."""

    def __init__(self, runner: Runner, policy: MeasurePolicy) -> None:
        self._policy, self._stopwatch = policy, Stopwatch(runner, policy.kv_bytes)
        grid = grid_for(runner.instance.shape)
        self._prefill = GridSampler(grid.chunks, grid.pasts, Near((8, 32, 128), 256), policy.grids)
        self._decode = GridSampler(grid.batches, grid.contexts, Near((1, 8), 1024), policy.grids)
        self._dense: DenseSampler | None = None
        self.checks: list[CheckSample] = []
        self._to_check = check_loads(runner.instance.shape)
        self._once_more: deque[_Sample] = deque()
        self._under_way: _Sample | None = None
        self.done = 0
        """Samples run."""
        self.stage_ended = False
        """Whether the last run ended a stage: what was measured so far is enough to plan with."""

    @property
    def total(self) -> int:
        """Samples of all stages, as it looks now."""
        dense = self._dense.left if self._dense else 4
        checks = len(self._to_check) - len(self.checks)
        first = self._prefill.left + self._decode.left + dense + checks
        return self.done + 2 * first + len(self._once_more) + (self._under_way is not None)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to measure."""
        return len(self.checks) == len(self._to_check) and not self._once_more and self._under_way is None

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

    def run(self, waits: Callable[[], bool]) -> None:
        """Run the sample that is next once; it ends with the run that makes it known well enough.

        What `waits` for the device ends a run early, where the engine can; not for ever, or nothing would be measured
        on a busy device. Raises EngineError as the engine does, or when requests own all KV there is.
        """
        self.stage_ended = False
        one = self._under_way = self._under_way or self._next()
        seconds = self._time(one, waits)
        if seconds is None:
            one.broken_off += 1
            return
        one.runs.append(seconds)
        if not self._known(one):
            return
        self._under_way = None
        self._learn(one)
        self.stage_ended = one.ends_stage()
        self.done += 1

    def _time(self, one: _Sample, waits: Callable[[], bool]) -> float | None:
        if one.broken_off >= self._policy.most_broken_off:
            return self._stopwatch.seconds(one.rows)
        return self._stopwatch.seconds_unless(one.rows, waits)

    def _known(self, one: _Sample) -> bool:
        policy = self._policy
        return len(one.runs) >= policy.repeats or sum(one.runs) >= one.enough_s or _agreed(one.runs, policy.agree)

    def _learn(self, one: _Sample) -> None:
        """Take the second fastest run of a sample; have it run again later, twice if both times are far apart."""
        seconds = (*one.earlier, sorted(one.runs)[min(1, len(one.runs) - 1)])
        one.learn(median(seconds))
        if one.enough_s < self._policy.enough_s:
            seconds = ()
        if len(seconds) < 2 or (len(seconds) == 2 and not _agreed(seconds, self._policy.disturbed)):
            self._once_more.append(_Sample(one.rows, one.learn, lambda: self.complete, self._policy.enough_s, seconds))

    def _next(self) -> _Sample:
        """What is enough to serve with; then the grids; the steps of dense computation; what checks them; all again."""
        first_s = self._policy.enough_first_s
        found = self._chunk(self._prefill.near(), self._near_known, first_s)
        found = found or self._batch(self._decode.near(), self._near_known, first_s)
        found = found or self._chunk(self._prefill.wanted(), self._far_known, self._policy.enough_s)
        found = found or self._batch(self._decode.wanted(), self._far_known, self._policy.enough_s)
        found = found or self._step()
        if found is not None:
            return found
        return self._check() if len(self.checks) < len(self._to_check) else self._once_more.popleft()

    def _near_known(self) -> bool:
        return self._prefill.near() is self._decode.near() is None

    def _far_known(self) -> bool:
        return self._prefill.wanted() is self._decode.wanted() is None

    def _chunk(self, point: Point | None, ends_stage: Callable[[], bool], enough_s: float) -> _Sample | None:
        if point is None:
            return None
        chunk, past = point
        return _Sample([(past, chunk)], partial(self._prefill.learned, point), ends_stage, enough_s)

    def _batch(self, point: Point | None, ends_stage: Callable[[], bool], enough_s: float) -> _Sample | None:
        if point is None:
            return None
        batch, context = point
        return _Sample([(context - 1, 1)] * batch, partial(self._decode.learned, point), ends_stage, enough_s)

    def _step(self) -> _Sample | None:
        if self._dense is None:
            alone = {chunk: seconds for (chunk, past), seconds in self._prefill.grid().items() if not past}
            self._dense = DenseSampler(max(alone), known=alone)
        tokens = self._dense.wanted()
        if tokens is None:
            return None
        return _Sample([(0, tokens)], partial(self._dense.learned, tokens), lambda: False, self._policy.enough_s)

    def _check(self) -> _Sample:
        load, place = self._to_check[len(self.checks)], len(self.checks)
        self.checks.append(load)
        rows = [(past, chunk) for chunk, past in load.prefill] + [(max(load.context_tokens - 1, 0), 1)] * load.batch
        return _Sample(rows, partial(self._checked, place), lambda: self.complete, self._policy.enough_s)

    def _checked(self, place: int, seconds: float) -> None:
        self.checks[place] = msgspec.structs.replace(self.checks[place], seconds=seconds)


def _agreed(seconds: Sequence[float], agree: float) -> bool:
    """Whether the two fastest of several runs are alike."""
    fastest = sorted(seconds)[:2]
    return len(fastest) == 2 and fastest[1] - fastest[0] <= agree * fastest[0]
