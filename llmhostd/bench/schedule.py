"""Who asks for how much, and when?

Every draw comes from its own stream of the seed, so that changing the lengths does not change the arrivals.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum

import numpy as np

from llmhostd.domain.words import Word


class PlannedRequest(Word):
    """One line of a schedule."""

    due_s: float
    """Seconds from the start of the run."""
    model: str
    input_tokens: int
    output_tokens: int


class Stream(IntEnum):
    """Which draw a random stream is for."""

    ARRIVALS = 0
    MODELS = 1
    INPUTS = 2
    OUTPUTS = 3
    WORDS = 4
    PROBES = 5


class Lengths(Word):
    """Token counts drawn uniformly from `first` to `last`, both included."""

    first: int
    last: int


def stream(seed: int, purpose: Stream) -> np.random.Generator:
    """An independent stream of random numbers."""
    return np.random.default_rng([seed, purpose])


def gamma_arrivals(seed: int, rate: float, cv: float) -> Iterator[float]:
    """Arrival times without end at `rate` per second; `cv` is the gaps' coefficient of variation (1: Poisson)."""
    rng = stream(seed, Stream.ARRIVALS)
    shape = 1 / cv**2
    now = 0.0
    while True:
        now += float(rng.gamma(shape, 1 / (rate * shape)))
        yield now


def on_off_arrivals(seed: int, rate: float, on_s: float, off_s: float) -> Iterator[float]:
    """Poisson arrivals in bursts of exponential length (mean `on_s`), with silences between (mean `off_s`).

    `rate` is the mean over bursts and silences together.
    """
    rng = stream(seed, Stream.ARRIVALS)
    burst_rate = rate * (on_s + off_s) / on_s
    began = 0.0
    while True:
        now, end = began, began + float(rng.exponential(on_s))
        while (now := now + float(rng.exponential(1 / burst_rate))) < end:
            yield now
        began = end + float(rng.exponential(off_s))


def zipf_models(seed: int, models: Sequence[str], exponent: float) -> Iterator[str]:
    """Model names without end: the k-th is asked for in proportion to 1 / k^exponent (0: all alike)."""
    rng = stream(seed, Stream.MODELS)
    weights = np.arange(1, len(models) + 1, dtype=float) ** -exponent
    edges = np.cumsum(weights / weights.sum())
    while True:
        yield models[min(int(np.searchsorted(edges, rng.random(), side="right")), len(models) - 1)]


def lengths(seed: int, purpose: Stream, bounds: Lengths) -> Iterator[int]:
    """Token counts without end."""
    rng = stream(seed, purpose)
    while True:
        yield int(rng.integers(bounds.first, bounds.last, endpoint=True))


def plan(
    arrivals: Iterator[float],
    models: Iterator[str],
    inputs: Iterator[int],
    outputs: Iterator[int],
    *,
    duration_s: float,
    most: int | None = None,
) -> list[PlannedRequest]:
    """The arrivals before `duration_s`, the first `most` of them."""
    planned: list[PlannedRequest] = []
    for due_s, model, wanted_in, wanted_out in zip(arrivals, models, inputs, outputs, strict=False):
        if due_s >= duration_s or len(planned) == most:
            break
        planned.append(PlannedRequest(due_s=due_s, model=model, input_tokens=wanted_in, output_tokens=wanted_out))
    return planned
