"""How far are the estimator's predictions from what iterations take? (SLINFER §VI-B: 100 random workloads.)

Random loads of three kinds, through the same batch and engine as real ones: one prefill chunk after a past, a decode
batch of requests of different contexts, and both in one iteration.
"""

import math
import random
from collections.abc import Callable, Sequence
from enum import StrEnum
from statistics import fmean, median_low

from llmhostd.compute.estimator import Estimator
from llmhostd.compute.profile_grid import GridPolicy
from llmhostd.domain.words import Word
from llmhostd.engines.runner import Runner
from llmhostd.worker.timing import Stopwatch

REPEATS = 5
ENOUGH_S = 0.5
"""A load is run `REPEATS` times, or until it took this long; the median counts."""


class Kind(StrEnum):
    """What an iteration is made of."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"


class RandomLoad(Word):
    """One iteration."""

    kind: Kind
    prefill: tuple[tuple[int, int], ...]
    """(chunk, past) in tokens."""
    contexts: tuple[int, ...]
    """Of the decoding requests, the token being computed included."""

    @property
    def rows(self) -> list[tuple[int, int]]:
        """(past, tokens to compute) of every request."""
        return [(past, chunk) for chunk, past in self.prefill] + [(context - 1, 1) for context in self.contexts]


class Deviation(Word):
    """One load, as predicted and as measured."""

    load: RandomLoad
    predicted_s: float
    measured_s: float
    again_s: float
    """The same load, after all others had their turn."""

    @property
    def repeated(self) -> float:
        """|again - measured| / measured: what no prediction can be rid of, whatever disturbs the machine."""
        return abs(self.again_s - self.measured_s) / self.measured_s

    @property
    def relative(self) -> float:
        """|predicted - measured| / measured."""
        return abs(self.predicted_s - self.measured_s) / self.measured_s


def random_loads(seed: int, each: int, longest_context: int, policy: GridPolicy | None = None) -> list[RandomLoad]:
    """`each` loads of every kind, evenly spread on a logarithmic scale over what a profile's grid covers."""
    policy = policy or GridPolicy()
    rng = random.Random(seed)  # noqa: S311 - loads, not secrets
    most_chunk = min(policy.most_chunk_tokens, longest_context // 2)
    most_past = min(policy.most_past_tokens, longest_context - most_chunk)

    def between(least: int, most: int) -> int:
        return round(math.exp(rng.uniform(math.log(least), math.log(most))))

    def chunk() -> tuple[int, int]:
        return between(min(policy.least_chunk_tokens, most_chunk), most_chunk), rng.choice((0, between(1, most_past)))

    def contexts() -> tuple[int, ...]:
        batch = between(1, policy.most_batch)
        return tuple(between(min(policy.least_context_tokens, most_past), most_past) for _ in range(batch))

    loads = []
    for _ in range(each):
        loads.append(RandomLoad(kind=Kind.PREFILL, prefill=(chunk(),), contexts=()))
        loads.append(RandomLoad(kind=Kind.DECODE, prefill=(), contexts=contexts()))
        loads.append(RandomLoad(kind=Kind.MIXED, prefill=(chunk(),), contexts=contexts()))
    return loads


def verify(
    runner: Runner, estimator: Estimator, loads: Sequence[RandomLoad], watch: Callable[[], None]
) -> list[Deviation]:
    """Run every load, then all of them once more, and compare. `watch` is called after each. Raises EngineError."""
    stopwatch = Stopwatch(runner)
    once, twice = ([_median_s(stopwatch, load, watch) for load in loads] for _ in range(2))
    return [
        Deviation(load=load, predicted_s=predict(estimator, load), measured_s=measured_s, again_s=again_s)
        for load, measured_s, again_s in zip(loads, once, twice, strict=True)
    ]


def _median_s(stopwatch: Stopwatch, load: RandomLoad, watch: Callable[[], None]) -> float:
    seconds: list[float] = []
    while len(seconds) < REPEATS and sum(seconds) < ENOUGH_S:
        seconds.append(stopwatch.seconds(load.rows))
    watch()
    return median_low(seconds)


def predict(estimator: Estimator, load: RandomLoad) -> float:
    """What the node mind would expect of it."""
    mean = round(fmean(load.contexts)) if load.contexts else 0
    return estimator.iteration_s(prefill=load.prefill, decode_batch=len(load.contexts), decode_context=mean)


def mean_deviation(deviations: Sequence[Deviation], kind: Kind) -> float:
    """Mean relative deviation of one kind; 0 if there is none."""
    return fmean([one.relative for one in deviations if one.load.kind is kind] or [0.0])
