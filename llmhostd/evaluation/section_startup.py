"""What do estimates and live migration save of start-up latency? (ServerlessLLM §7.3, figs. 8 and 9.)"""

from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

import msgspec

from llmhostd.domain.words import Word
from llmhostd.simulator.start_load import Dataset, StartLoad
from llmhostd.simulator.start_run import SCHEDULERS, Scheduler, StartOutcome, run_starts

RATES = (0.2, 0.8, 1.4)
OTHER_SIZES = (("opt-13b", 0.5), ("opt-30b", 0.15))
"""Larger models, and a rate that their GPUs can serve (the paper does not tell its own)."""


class Published(NamedTuple):
    """P99 start-up latency as a multiple of ServerlessLLM's. None: only told in a figure, or not at all."""

    serverless: float | None = None
    shepherd: float | None = None


PUBLISHED = {
    ("opt-6.7b", Dataset.GSM8K, 0.2): Published(shepherd=1.0),
    ("opt-6.7b", Dataset.GSM8K, 0.8): Published(1.86, 1.0),
    ("opt-6.7b", Dataset.GSM8K, 1.4): Published(1.95, 1.27),
    ("opt-6.7b", Dataset.SHAREGPT, 0.2): Published(shepherd=1.0),
    ("opt-6.7b", Dataset.SHAREGPT, 0.8): Published(shepherd=2.0),
    ("opt-6.7b", Dataset.SHAREGPT, 1.4): Published(1.05, 1.5),
    ("opt-30b", Dataset.SHAREGPT, 0.15): Published(1.54, 1.82),
}
"""§7.3. ShareGPT at 1.4/s: P95, by 1.43 and 1.5; OPT-30B: 35 % and 45 % less than each."""


class StartRow(Word):
    """One load, all schedulers; medians over seeds."""

    size: str
    dataset: Dataset
    rate: float
    requests: float
    p99_s: dict[Scheduler, float]
    ratio: dict[Scheduler, float]
    """P99 as a multiple of that under `serverlessllm`, seed by seed."""
    mean_s: dict[Scheduler, float]
    from_disk: dict[Scheduler, float]
    """Part of the loads whose checkpoint was not in host memory."""
    migrations: float
    preemptions: float
    given_up: dict[Scheduler, float]
    estimate_error: float
    """Median error of the estimates under `serverlessllm`, as a part of the truth."""
    published: Published


def loads(burstiness: float) -> Iterator[StartLoad]:
    """Every load of figs. 8 and 9."""
    for dataset in Dataset:
        for rate in RATES:
            yield StartLoad(dataset=dataset, rate=rate, burstiness=burstiness)
    for size, rate in OTHER_SIZES:
        for dataset in Dataset:
            yield StartLoad(size=size, dataset=dataset, rate=rate, burstiness=burstiness)


def compare(load: StartLoad, seeds: int) -> StartRow:
    """Play one load under every scheduler, with several seeds."""
    ran = {
        scheduler: [run_starts(msgspec.structs.replace(load, seed=seed), scheduler) for seed in range(seeds)]
        for scheduler in SCHEDULERS
    }
    best = ran[Scheduler.SERVERLESSLLM]
    return StartRow(
        size=load.size,
        dataset=load.dataset,
        rate=load.rate,
        requests=median(len(one.latencies_s) for one in best),
        p99_s={name: median(one.percentile_s(0.99) for one in outcomes) for name, outcomes in ran.items()},
        ratio={name: _ratio(outcomes, best) for name, outcomes in ran.items()},
        mean_s={
            name: median(sum(one.latencies_s) / len(one.latencies_s) for one in outs) for name, outs in ran.items()
        },
        from_disk={name: median(one.from_disk / max(one.loads, 1) for one in outs) for name, outs in ran.items()},
        migrations=median(one.migrations for one in best),
        preemptions=median(one.preemptions for one in ran[Scheduler.SHEPHERD]),
        given_up={name: median(one.given_up for one in outcomes) for name, outcomes in ran.items()},
        estimate_error=median(error for one in best for error in one.estimate_errors),
        published=PUBLISHED.get((load.size, load.dataset, load.rate), Published()),
    )


def _ratio(outcomes: list[StartOutcome], best: list[StartOutcome]) -> float:
    pairs = zip(outcomes, best, strict=True)
    return median(one.percentile_s(0.99) / max(other.percentile_s(0.99), 1e-9) for one, other in pairs)
