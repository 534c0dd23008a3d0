"""How does a person repeat ServerlessLLM's comparison of start-up latencies?"""

from collections.abc import Iterable
from functools import partial
from typing import TypeVar

import click
import msgspec
from rich.progress import track

from llmhostd.cli.root import example
from llmhostd.cli.terminal import PlainTable, aside, console
from llmhostd.evaluation.processes import simulating
from llmhostd.evaluation.section_serving import ServingRow, compare_systems, serving_loads
from llmhostd.evaluation.section_startup import StartRow, compare, loads
from llmhostd.simulator.start_load import models_of
from llmhostd.simulator.start_run import SYSTEMS, Scheduler

_Row = TypeVar("_Row")
_OTHERS = (Scheduler.SERVERLESS, Scheduler.SHEPHERD)


@click.command(
    "evaluate-starts",
    epilog=example("evaluate-starts", "evaluate-starts --systems", "evaluate-starts --seeds 20 --json"),
)
@click.option("--seeds", type=click.IntRange(min=1), default=10, show_default=True, help="Loads of each kind.")
@click.option("--burstiness", type=click.FloatRange(min=0), default=1.0, show_default=True, help="Coefficient of "
              "variation of each model's requests per minute.")  # fmt: skip
@click.option("--systems", is_flag=True, help="Whole systems instead, beside others that download and load (§7.4).")
@click.option("--processes", type=click.IntRange(min=1), help="Simulations at once.  [default: as there are cores]")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def evaluate_starts(seeds: int, burstiness: float, systems: bool, processes: int | None, as_json: bool) -> None:
    """Repeat ServerlessLLM's comparison of start-up latencies beside what was published.

    Four servers of four GPUs; random placement, preemption and live migration. Ratios are of the 99th percentile.
    """
    with simulating(processes) as pool:
        if systems:
            asked = list(serving_loads(burstiness))
            serving = list(_told(pool.map(partial(compare_systems, seeds=seeds), asked), len(asked)))
            _show(serving, serving_table(serving), "mean start-up latency (300 s if given up)", as_json=as_json)
            return
        each = list(loads(burstiness))
        rows = list(_told(pool.map(partial(compare, seeds=seeds), each), len(each)))
    _show(rows, start_table(rows), "ratios: P99 start-up latency, pauses added, over serverlessllm's", as_json=as_json)


def _told(rows: Iterable[_Row], count: int) -> Iterable[_Row]:
    """Say how many are there already."""
    return track(rows, "simulating", total=count, console=aside(), transient=True)


def _show(rows: object, table: PlainTable, what: str, *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(rows), indent=2).decode())
        return
    out = console()
    out.print(table)
    out.print(f"[dim]{what}; in brackets the paper's[/]")


def serving_table(rows: list[ServingRow]) -> PlainTable:
    """One row per point of a figure."""
    table = PlainTable("FIGURE", "MODELS", "DATASET", "REQ/S", "GPUS", *(name.upper() for name in SYSTEMS), "IN TIME",
                       "DOWNLOADS", spare=("GPUS", "DOWNLOADS", "IN TIME"))  # fmt: skip
    for one in rows:
        load, paper = one.asked.load, one.published_s
        table.add_row(
            one.asked.figure, f"{len(models_of(load))} {load.size}", load.dataset, f"{load.rate:g}",
            f"{4 * one.asked.gpus}",
            *(f"{one.mean_s[name]:.1f} s{f' ({paper[name]:g} s)' if name in paper else ''}" for name in SYSTEMS),
            " / ".join(f"{one.in_time[name]:.0%}" for name in SYSTEMS),
            " / ".join(f"{one.downloads[name]:.0%}" for name in SYSTEMS),
        )  # fmt: skip
    return table


def start_table(rows: list[StartRow]) -> PlainTable:
    """One row per load."""
    table = PlainTable("MODELS", "DATASET", "REQ/S", "P99", *(name.upper() for name in _OTHERS), "FROM DISK",
                       "MIGRATIONS", "PREEMPTIONS", "ESTIMATES OFF BY",
                       spare=("ESTIMATES OFF BY", "PREEMPTIONS", "FROM DISK", "MIGRATIONS"))  # fmt: skip
    for one in rows:
        paper = dict(zip(_OTHERS, one.published, strict=True))
        disk = " / ".join(f"{one.from_disk[name]:.0%}" for name in (*_OTHERS, Scheduler.SERVERLESSLLM))
        table.add_row(
            one.size, one.dataset, f"{one.rate:g}", f"{one.p99_s[Scheduler.SERVERLESSLLM]:.2f} s",
            *(f"{one.ratio[name]:.2f} x{f' ({paper[name]:.2f} x)' if paper[name] else ''}" for name in _OTHERS),
            disk, f"{one.migrations:.0f} of {one.requests:.0f}", f"{one.preemptions:.0f} of {one.requests:.0f}",
            f"{one.estimate_error:.1%}",
        )  # fmt: skip
    return table
