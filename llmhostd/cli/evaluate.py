"""How does a person repeat the evaluation of SLINFER, and see how we compare?"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from llmhostd.cli.root import example
from llmhostd.cli.terminal import aside
from llmhostd.domain.errors import CallerError, OperatorError
from llmhostd.evaluation.computing import Failure, compute, missing_files, name_of
from llmhostd.evaluation.evaluation_report import SECTIONS, write_report
from llmhostd.evaluation.parts import PROFILES, experiments_of, parts
from llmhostd.evaluation.points import Point, Points
from llmhostd.simulator.experiment import Experiment
from llmhostd.simulator.outcome import Outcome

DEFAULT_OUT = Path("evaluation")


class PartsOption(click.ParamType[tuple[str, ...]]):
    """`grid,ablations`."""

    name = "PART,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(str(value).split(",")))
        for name in names:
            if name not in SECTIONS:
                self.fail(f"there is no part {name!r}; there are: {', '.join(SECTIONS)}", param, ctx)
        return names


@click.command(
    epilog=example(
        "evaluate --data slinfer-data",
        "evaluate --data slinfer-data --part grid,ablations --processes 8",
        "evaluate --data slinfer-data --part traces --trace bursty.csv --out bursty",
    )
)
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Folder with the artefact's traces and "
              "profiles.")  # fmt: skip
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=DEFAULT_OUT, show_default=True,
              help="Folder for the report, its figures, and every computed point.")  # fmt: skip
@click.option("--part", "names", type=PartsOption(), help=f"Which parts: {', '.join(SECTIONS)}.  [default: all]")
@click.option("--trace", "traces", type=click.Path(exists=True, dir_okay=False, path_type=Path, resolve_path=True),
              multiple=True, help="Another trace for the part `traces`; may be given several times.")  # fmt: skip
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True),
              help="Only what arrives in the first minutes of each trace: a quick look.")  # fmt: skip
@click.option("--processes", type=click.IntRange(min=1), help="Simulations at once.  [default: as there are cores]")
@click.option("--again", is_flag=True, help="Compute points that are there already, too.")
def evaluate(
    data: Path | None, out: Path, names: tuple[str, ...] | None, traces: tuple[Path, ...], minutes: float | None,
    processes: int | None, again: bool,
) -> None:  # fmt: skip
    """Repeat the evaluation of SLINFER and draw it beside what was published.

    Hundreds of half-hour traces are simulated. Each point is kept as soon as it is computed: stopped, it goes on where
    it was.
    """
    if data is None:
        raise CallerError(
            f"--data is missing: a folder with {PROFILES} and the traces of SLINFER's artefact "
            "(slinfer_azfunc128_*.csv.gz and slinfer_burstgpt64_*.csv.gz); none of them comes with llmhostd",
            field="data",
        )
    if not (data / PROFILES).is_file():
        raise OperatorError(f"--data {data}: has no {PROFILES}, without which nothing can be simulated")
    every = parts(traces)
    chosen = [every[name] for name in names or SECTIONS]
    points = Points(out)
    wanted = {msgspec.structs.replace(each, minutes=minutes): each for each in experiments_of(chosen)}
    found, failures, absent = _compute(list(wanted), data, points, processes, again=again)
    computed = {wanted[each]: point for each, point in found.items()}
    for file, count in absent.items():
        click.echo(f"{data / file} is not there: {count} experiments are left out", err=True)
    for one in failures:
        click.echo(f"{name_of(one.experiment)} failed: {one.why}", err=True)
    if not computed:
        raise OperatorError("nothing was computed, so there is nothing to report")
    click.echo(f"{write_report(out, chosen, computed, failures, absent, minutes)} has {len(computed)} experiments")


def _compute(
    wanted: Sequence[Experiment], data: Path, points: Points, processes: int | None, *, again: bool
) -> tuple[dict[Experiment, Point], list[Failure], dict[Path, int]]:
    """Compute what is not there yet; returns all that is there now, what failed, and which files are missing."""
    known = {} if again else points.load(wanted)
    absent = missing_files([each for each in wanted if each not in known], data)
    todo = [each for each in wanted if each not in known and not {each.trace, each.profiles} & set(absent)]
    if not todo:
        return known, [], absent
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=aside()) as bars:
        bar = bars.add_task("simulating", total=len(wanted), completed=len(wanted) - len(todo))

        def told(experiment: Experiment, outcome: Outcome | None) -> None:
            said = f"{outcome.slo_rate:.2%} met" if outcome else "failed"
            bars.console.print(f"{name_of(experiment)}: {said}", highlight=False, style="dim")
            bars.advance(bar)

        made, failures = compute(todo, data, points, processes, told)
    return known | made, failures, absent
