"""How many promises were kept, and how fast was it?

A refused request is a missed one. Goodput counts only requests that met both SLOs (TTFT, and the mean TPOT), over the
time from the first due request to the last end.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from llmhostd.bench.records import Outcome, Record
from llmhostd.domain.model import Slo
from llmhostd.domain.words import Word


class Distribution(Word):
    """Of seconds. Percentiles are by linear interpolation."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


class Summary(Word):
    """One run."""

    slo: Slo
    requests: int
    completed: int
    refused: int
    errors: int
    lost: int
    duration_s: float
    met: int
    """Completed within both SLOs."""
    attainment: float
    """Of all requests, refused, failed and lost ones counted as missed."""
    attainment_of_served: float
    """Of those completed."""
    met_ttft: int
    met_tpot: int
    goodput_requests_per_s: float
    goodput_tokens_per_s: float
    throughput_tokens_per_s: float
    """Output tokens of all completed requests."""
    ttft: Distribution | None
    tpot: Distribution | None
    """Of requests with at least two output tokens."""
    e2e: Distribution | None
    longest_gap: Distribution | None
    time_to_refusal: Distribution | None
    send_lag: Distribution | None
    """How late the generator itself was; figures of a run that lags mean little."""
    prompt_tokens_mean: float
    output_tokens_mean: float


def summarize(records: Sequence[Record], slo: Slo) -> Summary:
    """Count and measure."""
    completed = [one for one in records if one.outcome is Outcome.COMPLETED]
    met = [one for one in completed if one.ttft_s <= slo.ttft_s and one.tpot_s <= slo.tpot_s]
    began = min((one.planned.due_s for one in records), default=0.0)
    duration_s = max((one.end_s for one in records), default=began) - began
    refused = [one for one in records if one.outcome is Outcome.REFUSED]
    long_ones = [one for one in completed if one.tokens_out > 1]
    return Summary(
        slo=slo,
        requests=len(records),
        completed=len(completed),
        refused=len(refused),
        errors=sum(one.outcome is Outcome.ERROR for one in records),
        lost=sum(one.outcome is Outcome.LOST for one in records),
        duration_s=duration_s,
        met=len(met),
        attainment=_ratio(len(met), len(records)),
        attainment_of_served=_ratio(len(met), len(completed)),
        met_ttft=sum(one.ttft_s <= slo.ttft_s for one in completed),
        met_tpot=sum(one.tpot_s <= slo.tpot_s for one in completed),
        goodput_requests_per_s=_ratio(len(met), duration_s),
        goodput_tokens_per_s=_ratio(sum(one.tokens_out for one in met), duration_s),
        throughput_tokens_per_s=_ratio(sum(one.tokens_out for one in completed), duration_s),
        ttft=_distribution(completed, lambda one: one.ttft_s),
        tpot=_distribution(long_ones, lambda one: one.tpot_s),
        e2e=_distribution(completed, lambda one: one.e2e_s),
        longest_gap=_distribution(long_ones, lambda one: one.longest_gap_s),
        time_to_refusal=_distribution(refused, lambda one: one.e2e_s),
        send_lag=_distribution(records, lambda one: one.lag_s),
        prompt_tokens_mean=_mean(one.prompt_tokens or one.planned.input_tokens for one in completed),
        output_tokens_mean=_mean(one.tokens_out for one in completed),
    )


def _distribution(records: Sequence[Record], of: Callable[[Record], float]) -> Distribution | None:
    values = np.array([of(one) for one in records])
    if not len(values):
        return None
    p50, p90, p95, p99 = (float(value) for value in np.percentile(values, (50, 90, 95, 99)))
    return Distribution(
        count=len(values), mean=float(values.mean()), p50=p50, p90=p90, p95=p95, p99=p99, max=float(values.max())
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _mean(values: Iterable[float]) -> float:
    all_values = list(values)
    return _ratio(sum(all_values), len(all_values))
