"""How far does an outcome depend on chance? Several seeds, with confidence intervals."""

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import msgspec

from llmhostd.domain.words import Word
from llmhostd.simulator.experiment import Experiment, run
from llmhostd.simulator.outcome import Outcome

T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's t, 97.5 %, for 1, 2, ... degrees of freedom; more are taken as the last."""


class Spread(Word):
    """The same experiment with several seeds."""

    outcomes: tuple[Outcome, ...]
    mean: dict[str, Any]
    """Of every figure, under the keys of an outcome."""
    half_width_95: dict[str, Any]
    """The mean is within this of the truth with 95 % confidence; under the same keys, figures only."""


def run_seeds(experiment: Experiment, seeds: int) -> Spread:
    """Run an experiment with `seeds` seeds, from its own on. Raises OperatorError as `run` does."""
    return spread([run(msgspec.structs.replace(experiment, seed=experiment.seed + n)) for n in range(seeds)])


def spread(outcomes: Sequence[Outcome]) -> Spread:
    """Sum up at least one outcome."""
    words = [msgspec.to_builtins(each) for each in outcomes]
    return Spread(
        outcomes=tuple(outcomes),
        mean=_each_figure(words, _mean),
        half_width_95=_figures_only(_each_figure(words, half_width)),
    )


def _each_figure(words: Sequence[dict[str, Any]], sum_up: Callable[[list[float]], float]) -> dict[str, Any]:
    """Sum up figure by figure, whatever the depth; words stay, and a figure that one of them does not tell is none."""
    summed: dict[str, Any] = {}
    for key, first in words[0].items():
        values = [each[key] for each in words]
        if isinstance(first, dict):
            summed[key] = _each_figure(values, sum_up)
        else:
            summed[key] = first if isinstance(first, str) else None if None in values else sum_up(values)
    return summed


def _figures_only(words: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in words.items() if not isinstance(value, str)}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def half_width(values: list[float]) -> float:
    """Of the 95 % confidence interval of the mean; 0 for a single value."""
    n = len(values)
    if n < 2:
        return 0.0
    mean = _mean(values)
    deviation = sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    return T_975[min(n - 2, len(T_975) - 1)] * deviation / sqrt(n)
