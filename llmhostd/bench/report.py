"""How does a run look on a terminal?"""

from collections.abc import Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from llmhostd.bench.records import Outcome, Record
from llmhostd.bench.summary import Distribution, Summary

BARS = "▁▂▃▄▅▆▇█"
BUCKETS = 60
LAG_LIMIT_S = 0.05
"""A generator later than this at the 99th percentile measures itself."""


def print_report(console: Console, summary: Summary, records: Sequence[Record]) -> None:
    """Everything that fits on a screen."""
    console.print(_counts(summary))
    console.print(_distributions(summary))
    console.print(_timelines(summary, records))
    if summary.send_lag and summary.send_lag.p99 > LAG_LIMIT_S:
        console.print(
            f"[bold red]The load generator lagged[/] ({summary.send_lag.p99 * 1e3:.0f} ms at p99): it was short of "
            "CPU, and the figures above are worse than the server."
        )


def _counts(summary: Summary) -> RenderableType:
    slo, of_served = summary.slo, f"{summary.attainment_of_served:.1%}"
    promise = f"TTFT <= {slo.ttft_s:g} s and TPOT <= {slo.tpot_s * 1e3:g} ms"
    return Text.from_markup(
        f"[bold]{summary.attainment:.1%}[/] of {summary.requests} requests met {promise}; "
        f"refused, failed and lost ones count as missed\n"
        f"[bold]{of_served}[/] of the {summary.completed} served met it; "
        f"refused {summary.refused}, errors {summary.errors}, lost {summary.lost}, in {summary.duration_s:.1f} s\n"
        f"goodput {summary.goodput_requests_per_s:.2f} requests/s, {summary.goodput_tokens_per_s:.1f} tokens/s; "
        f"throughput {summary.throughput_tokens_per_s:.1f} tokens/s; "
        f"mean prompt {summary.prompt_tokens_mean:.0f} tokens, output {summary.output_tokens_mean:.0f}"
    )


def _distributions(summary: Summary) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("ms")
    for name in ("mean", "p50", "p90", "p95", "p99", "max", "of"):
        table.add_column(name, justify="right")
    rows: tuple[tuple[str, Distribution | None], ...] = (
        ("time to first token", summary.ttft),
        ("time per output token", summary.tpot),
        ("end to end", summary.e2e),
        ("longest gap", summary.longest_gap),
        ("time to refusal", summary.time_to_refusal),
        ("send lag (generator)", summary.send_lag),
    )
    for name, row in rows:
        if row:
            figures = (row.mean, row.p50, row.p90, row.p95, row.p99, row.max)
            table.add_row(name, *(f"{value * 1e3:,.1f}" for value in figures), str(row.count))
    return table


def _timelines(summary: Summary, records: Sequence[Record]) -> RenderableType:
    if not records:
        return Text("no requests")
    width_s = max(one.planned.due_s for one in records) / BUCKETS or 1.0
    slo = summary.slo
    missed = [
        one
        for one in records
        if one.outcome is not Outcome.COMPLETED or one.ttft_s > slo.ttft_s or one.tpot_s > slo.tpot_s
    ]
    served = [one for one in records if one.outcome is Outcome.COMPLETED]
    return Group(
        Text(f"arrivals  {sparkline(_over_time(records, width_s))}  {BUCKETS * width_s:.0f} s"),
        Text(f"missed    {sparkline(_over_time(missed, width_s))}"),
        Text(f"TTFT      {sparkline(_histogram([one.ttft_s for one in served], 2 * slo.ttft_s))}  0 to twice the SLO"),
        Text(f"TPOT      {sparkline(_histogram([one.tpot_s for one in served], 2 * slo.tpot_s))}  0 to twice the SLO"),
    )


def sparkline(counts: Iterable[int]) -> str:
    """One character a bucket; a blank for zero, the highest bar for the largest."""
    bars = list(counts)
    top = max(bars, default=0)
    return "".join(" " if count == 0 else BARS[(count * len(BARS) - 1) // top] for count in bars)


def _over_time(records: Sequence[Record], width_s: float) -> list[int]:
    counts = [0] * BUCKETS
    for one in records:
        counts[min(BUCKETS - 1, int(one.planned.due_s / width_s))] += 1
    return counts


def _histogram(values: Sequence[float], top: float) -> list[int]:
    counts = [0] * BUCKETS
    for value in values:
        counts[min(BUCKETS - 1, int(value / top * BUCKETS))] += 1
    return counts
