"""What does a whole system gain that starts models fast? (ServerlessLLM §7.4, figs. 10 to 12.)

Others download, then load with another loader, and place at random; checkpoints lie on disks that do not hold them all.
Where the paper does not tell a rate or a disk's size, they are ours: shapes can be compared, figures hardly.
"""

from collections.abc import Iterator
from statistics import median

import msgspec

from llmhostd.domain.words import Word
from llmhostd.simulator.start_cluster import Bed
from llmhostd.simulator.start_load import Dataset, StartLoad
from llmhostd.simulator.start_run import SYSTEMS, Scheduler, run_starts

SSD_BYTES = 200_000_000_000
"""Checkpoints on each server's disk: 14 of 32 OPT-6.7B. The paper says that they do not all fit, not how many do."""
SIZES = (("opt-6.7b", 0.8), ("opt-13b", 0.5), ("opt-30b", 0.15))
"""Fig. 10, and our rates."""
RATES = (0.2, 0.5, 0.8, 1.1, 1.4)
GPUS = (1, 2, 3, 4)
MODELS = (4, 8, 16, 32, 64)
RARE = 0.5
"""Requests per second in fig. 12 (ours)."""

PUBLISHED: dict[tuple[str, str, Dataset, float], dict[Scheduler, float]] = {
    ("fig. 10", "opt-6.7b", Dataset.GSM8K, 0.8): {
        Scheduler.RAY: 12.1,
        Scheduler.RAY_CACHE: 8.2,
        Scheduler.SERVERLESSLLM: 0.8,
    },
    ("fig. 10", "opt-30b", Dataset.GSM8K, 0.15): {
        Scheduler.RAY: 213.0,
        Scheduler.RAY_CACHE: 199.2,
        Scheduler.SERVERLESSLLM: 7.5,
    },
    ("fig. 10", "opt-6.7b", Dataset.SHAREGPT, 0.8): {
        Scheduler.RAY: 182.2,
        Scheduler.RAY_CACHE: 162.4,
        Scheduler.SERVERLESSLLM: 0.8,
    },
    ("fig. 10", "opt-13b", Dataset.SHAREGPT, 0.5): {Scheduler.SERVERLESSLLM: 1.6},
    ("fig. 10", "opt-30b", Dataset.SHAREGPT, 0.15): {Scheduler.RAY_CACHE: 261.8, Scheduler.SERVERLESSLLM: 89.9},
}
"""Mean start-up latencies in seconds that the text tells; by figure, models, dataset and rate."""
PUBLISHED_GPUS = {1: {Scheduler.SERVERLESSLLM: 4.0}, 4: {Scheduler.RAY_CACHE: 12.0}}
"""The same of fig. 12a, by GPUs of a server."""


class ServingLoad(Word):
    """One point of a figure."""

    figure: str
    load: StartLoad
    gpus: int = 4


class ServingRow(Word):
    """One point of a figure, all systems; medians over seeds."""

    asked: ServingLoad
    requests: float
    mean_s: dict[Scheduler, float]
    """Start-up latency; 300 s for those that were given up."""
    in_time: dict[Scheduler, float]
    """Part that was begun within 300 s."""
    downloads: dict[Scheduler, float]
    """Part of the loads whose checkpoint came over the network."""
    published_s: dict[Scheduler, float]


def serving_loads(burstiness: float) -> Iterator[ServingLoad]:
    """Every point of figs. 10 to 12."""
    for size, rate in SIZES:
        for dataset in Dataset:
            yield ServingLoad(
                figure="fig. 10", load=StartLoad(size=size, dataset=dataset, rate=rate, burstiness=burstiness)
            )
    for dataset in Dataset:
        for rate in RATES:
            yield ServingLoad(figure="fig. 11", load=StartLoad(dataset=dataset, rate=rate, burstiness=burstiness))
    rare = StartLoad(rate=RARE, burstiness=burstiness)
    for gpus in GPUS:
        yield ServingLoad(figure="fig. 12a", load=rare, gpus=gpus)
    for models in MODELS:
        yield ServingLoad(figure="fig. 12b", load=msgspec.structs.replace(rare, models=models))


def compare_systems(asked: ServingLoad, seeds: int) -> ServingRow:
    """Play one load in every system, with several seeds."""
    load, bed = asked.load, Bed(gpus=asked.gpus, ssd_bytes=SSD_BYTES)
    ran = {
        system: [run_starts(msgspec.structs.replace(load, seed=seed), system, bed) for seed in range(seeds)]
        for system in SYSTEMS
    }
    published_s = PUBLISHED.get((asked.figure, load.size, load.dataset, load.rate), {})
    if asked.figure == "fig. 12a":
        published_s = PUBLISHED_GPUS.get(asked.gpus, {})
    return ServingRow(
        asked=asked,
        requests=median(len(one.latencies_s) for one in ran[Scheduler.SERVERLESSLLM]),
        mean_s={name: median(one.mean_s for one in outcomes) for name, outcomes in ran.items()},
        in_time={
            name: median(1.0 - one.given_up / max(len(one.latencies_s), 1) for one in outcomes)
            for name, outcomes in ran.items()
        },
        downloads={
            name: median(one.downloads / max(one.loads, 1) for one in outcomes) for name, outcomes in ran.items()
        },
        published_s=published_s,
    )
