"""How does a person repeat ServerlessLLM's comparison of start-up latencies?"""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import click
import msgspec
from rich.table import Table

from llmhostd.cli.root import example
from llmhostd.cli.terminal import console, plain_table
from llmhostd.evaluation.section_startup import StartRow, compare, loads
from llmhostd.simulator.start_run import Scheduler

_OTHERS = (Scheduler.SERVERLESS, Scheduler.SHEPHERD)


@click.command("evaluate-starts", epilog=example("evaluate-starts", "evaluate-starts --seeds 20 --burstiness 8 --json"))
@click.option("--seeds", type=click.IntRange(min=1), default=10, show_default=True, help="Loads of each kind.")
@click.option("--burstiness", type=click.FloatRange(min=0), default=1.0, show_default=True, help="Coefficient of "
              "variation of each model's requests per minute.")  # fmt: skip
@click.option("--processes", type=click.IntRange(min=1), help="Simulations at once.  [default: as there are cores]")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def evaluate_starts(seeds: int, burstiness: float, processes: int | None, as_json: bool) -> None:
    """Repeat ServerlessLLM's comparison of start-up latencies beside what was published.

    Four servers of four GPUs; random placement, preemption and live migration. Ratios are of the 99th percentile.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes or len(os.sched_getaffinity(0)), mp_context=context) as pool:
        rows = list(pool.map(partial(compare, seeds=seeds), loads(burstiness)))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(rows), indent=2))
        return
    out = console()
    out.print(start_table(rows))
    out.print("[dim]ratios: P99 start-up latency, pauses added, over serverlessllm's; in brackets the paper's[/]")


def start_table(rows: list[StartRow]) -> Table:
    """One row per load."""
    table = plain_table("MODELS", "DATASET", "REQ/S", "P99", *(name.upper() for name in _OTHERS), "FROM DISK",
                        "MIGRATIONS", "PREEMPTIONS", "ESTIMATES OFF BY")  # fmt: skip
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
