"""Who asks which model for how much, in an experiment on start-up? (ServerlessLLM §7.1: workloads and datasets.)

No trace is needed: models are popular by Zipf, each is asked for more in some minutes than in others, and
lengths are drawn as those of the paper's datasets are on average.
"""

from collections.abc import Iterator
from enum import StrEnum
from heapq import merge
from typing import NamedTuple

import numpy as np

from llmhostd.domain.words import Word
from llmhostd.migration.start_choice import Model
from llmhostd.simulator.chance import Purpose


class Dataset(StrEnum):
    """Whose lengths prompts and answers have."""

    GSM8K = "gsm8k"
    SHAREGPT = "sharegpt"


class Lengths(NamedTuple):
    """Means of log-normal lengths in tokens, and the deviation of their logarithms."""

    prompt: float
    answer: float
    spread: float


LENGTHS = {Dataset.GSM8K: Lengths(63.0, 90.0, 0.4), Dataset.SHAREGPT: Lengths(161.0, 338.0, 1.0)}
"""At OPT-6.7B's pace ShareGPT's answers take 3.7 times as long as GSM8K's, as in §7.3."""


MINUTE_S = 60.0
"""Functions are traced by their calls per minute."""


class StartSize(Word):
    """One of the paper's models on its A40s."""

    weight_bytes: int
    gpus: int
    copies: int
    """How many models of this size are hosted (§7.1)."""
    token_s: float
    """Per output token; what 16 GPUs serve of ShareGPT at most is 1.79 requests a second for 6.7B (§7.3)."""


SIZES = {
    "opt-6.7b": StartSize(weight_bytes=13_400_000_000, gpus=1, copies=32, token_s=0.0255),
    "opt-13b": StartSize(weight_bytes=26_000_000_000, gpus=1, copies=16, token_s=0.045),
    "opt-30b": StartSize(weight_bytes=66_000_000_000, gpus=2, copies=8, token_s=0.06),
}


class Asked(NamedTuple):
    """One request."""

    arrived_s: float
    model: Model
    prompt_tokens: int
    answer_tokens: int


class StartLoad(Word):
    """A load on start-up."""

    size: str = "opt-6.7b"
    dataset: Dataset = Dataset.GSM8K
    rate: float = 1.4
    """Requests per second, all models together."""
    duration_s: float = 660.0
    burstiness: float = 1.0
    """Coefficient of variation of a model's requests per minute (the paper draws from a Gamma distribution, with 8 over
    intervals that it does not tell); 0: as many in every minute, on average."""
    zipf: float = 1.0
    """Popularity of the n-th model: n to the power of minus this."""
    models: int = 0
    """How many are hosted; 0: as many of this size as in the paper."""
    seed: int = 0


def models_of(load: StartLoad) -> list[Model]:
    """The models that are hosted."""
    size = SIZES[load.size]
    return [Model(f"{load.size}-{n}", size.gpus, size.weight_bytes) for n in range(load.models or size.copies)]


def asked_of(load: StartLoad) -> list[Asked]:
    """Every request, in order of arrival; time is stretched so that they come at the wanted rate (§7.1)."""
    models = models_of(load)
    weights = [(n + 1.0) ** -load.zipf for n in range(len(models))]
    streams = (
        _stream(model, load.rate * weight / sum(weights), load, n)
        for n, (model, weight) in enumerate(zip(models, weights, strict=True))
    )
    drawn = list(merge(*streams, key=lambda one: one.arrived_s))
    stretch = len(drawn) / (load.rate * load.duration_s)
    return [one._replace(arrived_s=one.arrived_s * stretch) for one in drawn]


def _stream(model: Model, rate: float, load: StartLoad, number: int) -> Iterator[Asked]:
    """One model's requests: in every minute as many as a Gamma distribution says on average, at any time of it."""
    draw = np.random.default_rng([load.seed, Purpose.START_LOAD, number])
    lengths, variance = LENGTHS[load.dataset], load.burstiness**2
    for minute in range(int(load.duration_s // MINUTE_S)):
        mean = rate * MINUTE_S * (draw.gamma(1.0 / variance, variance) if variance else 1.0)
        for at_s in sorted(draw.uniform(0.0, MINUTE_S, draw.poisson(mean))):
            yield Asked(
                minute * MINUTE_S + float(at_s), model,
                _tokens(draw, lengths.prompt, lengths), _tokens(draw, lengths.answer, lengths),
            )  # fmt: skip


def _tokens(draw: np.random.Generator, mean: float, lengths: Lengths) -> int:
    spread = lengths.spread
    return max(int(draw.lognormal(np.log(mean) - spread**2 / 2, spread)), 1)
