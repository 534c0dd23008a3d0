"""How are many experiments run on all cores, so that stopping loses none that is done?"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass
from pathlib import Path

import msgspec

from llmhostd.domain.errors import LlmhostdError
from llmhostd.evaluation.points import Point, Points, slug
from llmhostd.evaluation.processes import simulating
from llmhostd.simulator.experiment import Experiment, run
from llmhostd.simulator.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Failure:
    """An experiment that ended without an outcome."""

    experiment: Experiment
    why: str


Told = Callable[[Experiment, Outcome | None], None]


def missing_files(experiments: Sequence[Experiment], data: Path) -> dict[Path, int]:
    """Which files of the data folder do experiments need that are not there, and how many need each?"""
    absent: dict[Path, int] = {}
    for experiment in experiments:
        for file in (experiment.trace, experiment.profiles):
            if not (data / file).is_file():
                absent[file] = absent.get(file, 0) + 1
    return absent


def compute(
    experiments: Sequence[Experiment], data: Path, points: Points, processes: int | None, told: Told
) -> tuple[dict[Experiment, Point], list[Failure]]:
    """Run experiments, the longest first, and keep each outcome as soon as it is there.

    `told` hears each that ended. An experiment that fails does not stop the others. Interrupted, it drops what has not
    begun.
    """
    made: dict[Experiment, Point] = {}
    failed: list[Failure] = []
    with simulating(processes) as pool:
        tasks: dict[Future[Outcome], Experiment] = {
            pool.submit(run_with, data, each): each for each in sorted(experiments, key=_expected_cost, reverse=True)
        }
        for task in as_completed(tasks):
            experiment = tasks[task]
            try:
                outcome = task.result()
            except Exception as error:  # noqa: BLE001 - the report names it
                failed.append(Failure(experiment, _spelled(error)))
                told(experiment, None)
            else:
                made[experiment] = points.keep(experiment, outcome)
                told(experiment, outcome)
    return made, failed


def run_with(data: Path, experiment: Experiment) -> Outcome:
    """Run one, with its files taken from the data folder."""
    return run(msgspec.structs.replace(experiment, trace=data / experiment.trace, profiles=data / experiment.profiles))


def name_of(experiment: Experiment) -> str:
    """An experiment's name without its digest, for a line of progress."""
    return slug(experiment).rpartition("-")[0]


def _expected_cost(experiment: Experiment) -> float:
    """Of the models hosted, roughly; the baselines try every instance again at each retry."""
    return (experiment.models or 128) * (2.0 if experiment.policy.startswith("sllm") else 1.0)


def _spelled(error: Exception) -> str:
    return str(error) if isinstance(error, LlmhostdError) else f"{type(error).__name__}: {error}"
