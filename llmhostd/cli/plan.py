"""How does a person learn what a box can promise, before they have it or before the traffic comes?"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from llmhostd.bench.load import Load
from llmhostd.bench.schedule import Lengths
from llmhostd.cli.daemon_client import config_of, daemon_if_running
from llmhostd.cli.option_types import BurstOption, LengthsOption, refuse_given
from llmhostd.cli.registry import existing_database, specs
from llmhostd.cli.root import Place, example
from llmhostd.cli.terminal import PlainTable, aside, console
from llmhostd.daemon.nodes import node_layout
from llmhostd.domain.errors import CallerError, OperatorError
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.model import Slo
from llmhostd.domain.snapshot import NodeSnapshot
from llmhostd.evaluation import plan_words as words
from llmhostd.evaluation.boxes import asked, on_cluster, on_this_box, planned
from llmhostd.evaluation.limit import GOOD
from llmhostd.evaluation.plan_report import check_kind, write_plan
from llmhostd.evaluation.planning import Plan, make_plan
from llmhostd.evaluation.processes import simulating
from llmhostd.evaluation.question import Question
from llmhostd.simulator.assumptions import SIZES
from llmhostd.state.profiles import ProfileTable

BAR = 20
POSITIVE = click.FloatRange(min=0, min_open=True)


class RateOption(click.ParamType[tuple[str, float]]):
    """`3` (all models together), or `wren-160m=0.5`."""

    name = "R or MODEL=R"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        name, _, said = str(value).rpartition("=")
        try:
            rate = float(said)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor like wren-160m=0.5", param, ctx)
        if not 0 < rate < float("inf"):
            self.fail(f"{value!r}: requests per second must be more than 0", param, ctx)
        return name, rate


@click.command(
    epilog=example(
        "plan --rate 3 --input-tokens 100-400 --output-tokens 20-200",
        "plan --rate wren-160m=0.5 --rate qwen3-0.6b=0.1 --plot plan.html",
        "plan --trace last-week.csv.gz --quick",
        "plan --cluster 2cpu+1gpu --profiles a100.json --size 7b --models 24 --trace azure.csv.gz",
    )
)
@click.option("--trace", type=click.Path(path_type=Path), help="Whose requests: a CSV file, as for `bench`.")
@click.option("--rate", "rates", type=RateOption(), multiple=True, help="Or requests per second: of all models "
              "together (by --zipf), or of one model; may be given several times.  [default: 1]")  # fmt: skip
@click.option("--duration", type=POSITIVE, help="Seconds of arrivals.  [default: 600, or the whole trace]")
@click.option("--zipf", type=click.FloatRange(min=0), default=1.0, help="Skew of the models' popularity.",
              show_default=True)  # fmt: skip
@click.option("--burst", type=BurstOption(), help="In bursts of so many seconds, with silences between.")
@click.option("--input-tokens", type=LengthsOption(), default="140", help="Prompt length.", show_default=True)
@click.option("--output-tokens", type=LengthsOption(), default="100", help="Output length.", show_default=True)
@click.option("--cluster", help="Another box than this one: like 2cpu+1gpu, or a JSON file. Needs --profiles.")
@click.option("--profiles", type=click.Path(path_type=Path), help="Published iteration times (JSON) for --cluster.")
@click.option("--size", type=click.Choice(list(SIZES)), default="7b", help="Size of the models on --cluster.",
              show_default=True)  # fmt: skip
@click.option("--models", "count", type=click.IntRange(min=1), default=8, help="How many are on --cluster.",
              show_default=True)  # fmt: skip
@click.option("--quick", is_flag=True, help="Do not look for the traffic at which it breaks.")
@click.option("--seed", type=int, default=0, help="The same arrivals and lengths.", show_default=True)
@click.option("--processes", type=click.IntRange(min=1), help="Simulations at once.  [default: as there are cores]")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Also draw it: FILE.png or FILE.html.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.pass_obj
def plan(
    place: Place, /, trace: Path | None, rates: tuple[tuple[str, float], ...], duration: float | None, zipf: float,
    burst: tuple[float, float] | None, input_tokens: Lengths, output_tokens: Lengths, cluster: str | None,
    profiles: Path | None, size: str, count: int, quick: bool, seed: int, processes: int | None, plot: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Say who would meet their SLO, what breaks first, and what more of anything would buy.

    Simulates this box, with its models, its settings and what was measured here, or a --cluster with published times.
    Whoever is refused counts as missed.
    """
    named = {name: rate for name, rate in rates if name}
    together = [rate for name, rate in rates if not name]
    if (named and together) or len(together) > 1 or (rates and trace):
        raise CallerError("--rate: give one for all models, or one for each, and none with --trace", field="rate")
    if named and burst:
        raise CallerError("--burst: is of the traffic of all models together; give one --rate", field="burst")
    if not cluster:
        refuse_given(("profiles", "size", "count"), "is of a --cluster, not of this box")
    if plot:
        check_kind(plot)
    question, about = _cluster(place, cluster, profiles, size, count, seed) if cluster else _own_box(place, seed)
    load = Load(
        models=[], trace=trace, rate=together[0] if together else 1.0, burst=burst, zipf=zipf, seed=seed,
        duration_s=duration or (None if trace else 600.0), input_tokens=input_tokens, output_tokens=output_tokens,
    )  # fmt: skip
    question = asked(question, planned(load, question.box.models, named))
    made = _make(question, processes, limits=not quick)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(made), indent=2))
    else:
        show(console(), made, about)
    if plot:
        write_plan(made, plot, about)


def _own_box(place: Place, seed: int) -> tuple[Question, str]:
    """Ask about this box; also returns a sentence about it."""
    config = config_of(place)
    nodes = _nodes(place, node_layout(config.nodes, config.devices, config.machine_memory).nodes)
    models = list(specs(place).values())
    if not models:
        raise OperatorError("this box has no models yet: add one (`llmhostd models add`), or plan for a --cluster")
    db = existing_database(place)
    question, guessed = on_this_box(config, nodes, models, ProfileTable(db).all() if db else [], seed)
    where = ", ".join(f"{node.id} with {node.memory_bytes / 2**30:.1f} GiB" for node in nodes)
    about = f"This box: {where}; {len(models)} models."
    if guessed:
        shown = ", ".join(guessed[:5]) + (f" and {len(guessed) - 5} more" if len(guessed) > 5 else "")
        about += f" Never measured here, so roughly estimated: {shown} (`llmhostd profile MODEL` measures)."
    return question, about


def _nodes(place: Place, nodes: Sequence[NodeSpec]) -> tuple[NodeSpec, ...]:
    """What a running daemon may use, which is what is free of the machine and what the daemon holds already."""
    with daemon_if_running(place) as daemon:
        told = daemon.get("/api/v1/nodes", tuple[NodeSnapshot, ...]) if daemon else ()
    known = {node.id: node.memory_bytes for node in told}
    return tuple(msgspec.structs.replace(node, memory_bytes=known.get(node.id, node.memory_bytes)) for node in nodes)


def _cluster(
    place: Place, cluster: str, profiles: Path | None, size: str, count: int, seed: int
) -> tuple[Question, str]:
    if profiles is None:
        raise CallerError("--cluster needs --profiles: how fast are its nodes?", field="profiles")
    slo = config_of(place).slo
    promise = Slo(ttft_s=slo.ttft_s, tpot_s=slo.tpot_s)
    question = on_cluster(cluster, profiles, size, count, promise, seed)
    return (
        question,
        f"Cluster {cluster}; {count} models of {size}; promised: TTFT {slo.ttft_s:g} s, TPOT {slo.tpot_s:g} s.",
    )


def _make(question: Question, processes: int | None, *, limits: bool) -> Plan:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=aside(), transient=True) as bars, simulating(processes) as pool:
        bar = bars.add_task("simulating", total=None)
        return make_plan(question, pool, limits=limits, told=lambda name, done, total: bars.update(
            bar, completed=done, total=total, description=f"simulated: {name}"
        ))  # fmt: skip


def show(out: Console, made: Plan, about: str) -> None:
    """Draw a plan for a terminal."""
    answer = made.as_it_is.answer
    out.print(Text(about, style="dim"))
    out.print(Text(f"{words.total(answer)}.\n", style="dim"))
    out.print(_models(made))
    out.print(Text(f"\n{words.verdict(made)}", style="bold green" if answer.attainment >= GOOD else "bold red"))
    for node in answer.nodes:
        out.print(f"  {words.describe_use(node)} (at most {node.memory_peak:.0%})")
    out.print(Text("\nWhat breaks first", style="bold"))
    out.print(f"  {words.breaking(made.as_it_is)}")
    out.print(Text("\nWhat would it buy?", style="bold"))
    out.print(_variants(made))


def _models(made: Plan) -> PlainTable:
    table = PlainTable("MODEL", "REQUESTS", "SLO MET", "", "TTFT P50", "P99", "SLO", "COLD STARTS", "MISSED",
                       spare=("", "SLO", "COLD STARTS", "TTFT P50"))  # fmt: skip
    for one in made.as_it_is.answer.models:
        table.add_row(
            str(one.model), f"{one.requests:,}", words.percent(one.attainment), _bar(one.attainment),
            words.seconds(one.ttft_p50_s), words.seconds(one.ttft_p99_s), words.seconds(one.ttft_slo_s),
            f"{one.cold_starts:,}", words.missed(one.missed),
        )  # fmt: skip
    return table


def _variants(made: Plan) -> PlainTable:
    table = PlainTable("  BOX", "SLO MET", "", "TAKES UP TO", "BUYS", spare=("",))
    for one in made.outlooks:
        table.add_row(
            f"  {one.name}", words.percent(one.answer.attainment), _bar(one.answer.attainment), words.holds(one.limit),
            "" if one is made.as_it_is else words.buys(made, one),
        )  # fmt: skip
    return table


def _bar(share: float) -> Text:
    colour = "green" if share >= GOOD else "yellow" if share >= 0.9 else "red"
    full = int(share * BAR)
    return Text("█" * full, style=colour) + Text("░" * (BAR - full), style="dim")
