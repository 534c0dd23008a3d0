"""How does a person repeat an experiment on published profiles? The part of `simulate` that begins with --profiles."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from llmhostd.domain.errors import OperatorError
from llmhostd.simulator.assumptions import SIZES, Assumptions
from llmhostd.simulator.contenders import POLICIES
from llmhostd.simulator.experiment import Experiment, run
from llmhostd.simulator.outcome import Outcome, as_text
from llmhostd.simulator.policies import Ablation
from llmhostd.simulator.seeds import run_seeds

_TOLD = tuple(name for name in Outcome.__struct_fields__ if name != "slo_rate_by_eq1")
"""What programs are told of one run; the rest is the evaluation's."""


class MixOption(click.ParamType[tuple[tuple[str, int], ...]]):
    """`3b:4,7b:1,13b:1`: sizes and their shares."""

    name = "SIZE:SHARE,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        mix: list[tuple[str, int]] = []
        for part in str(value).split(","):
            size, _, share = part.partition(":")
            if size not in SIZES or not share.isdecimal():
                self.fail(f"{part!r} is not a size of {', '.join(SIZES)} and its share, like 7b:2", param, ctx)
            mix.append((size, int(share)))
        if not any(share for _, share in mix):
            self.fail(f"{value!r} gives no size a share", param, ctx)
        return tuple(mix)


class AssumeOption(click.ParamType[tuple[str, str]]):
    """`kv_growth=allocate`: a field of the assumptions and its value."""

    name = "NAME=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        name, _, said = str(value).partition("=")
        if name not in Assumptions.__struct_fields__:
            self.fail(
                f"nothing called {name!r} is assumed; there are: {', '.join(Assumptions.__struct_fields__)}", param, ctx
            )
        return name, said


def assume(said: Sequence[tuple[str, str]]) -> Assumptions:
    """Take the usual assumptions but for these. Raises OperatorError for a value of the wrong kind."""
    try:
        return msgspec.convert(dict(said), Assumptions, strict=False)
    except msgspec.ValidationError as error:
        raise OperatorError(f"--assume: {error}") from error


def experiment_options(command: Any) -> Any:
    """Add the options that belong to --profiles."""
    for option in reversed((
        click.option("--profiles", type=click.Path(path_type=Path), help="Published iteration times (JSON): repeat the "
                     "evaluation of SLINFER with --trace and the options below."),
        click.option("--cluster", default="4cpu+4gpu", help="Its nodes: like 4cpu+4gpu, or a JSON file.",
                     show_default=True),
        click.option("--policy", type=click.Choice(POLICIES), default="llmhostd", help="Who decides.",
                     show_default=True),
        click.option("--without", type=click.Choice([str(each) for each in Ablation]), multiple=True,
                     help="An ablation; may be given several times."),
        click.option("--disaggregated", is_flag=True, help="Prefill and decode have instances of their own."),
        click.option("--mix", type=MixOption(), help="Models of several sizes in proportion."),
        click.option("--seeds", type=click.IntRange(min=1), default=1, help="Run so many seeds and give confidence "
                     "intervals.", show_default=True),
        click.option("--assume", type=AssumeOption(), multiple=True, help="Change an assumption, like "
                     "kv_growth=allocate."),
    )):  # fmt: skip
        command = option(command)
    return command


def run_experiment(
    *, trace: Path | None, profiles: Path, sizes: Sequence[str], models: int | None, seeds: int, as_json: bool,
    assumed: Sequence[tuple[str, str]], **more: Any,
) -> str:  # fmt: skip
    """Run what was asked for; returns what to print. Raises OperatorError naming the option or the file."""
    if trace is None:
        raise OperatorError("--profiles needs --trace: whose requests are served?")
    unknown = [size for size in sizes if size not in SIZES]
    if unknown or len(sizes) > 1:
        wrong = f"--size {unknown[0]} has no published profile" if unknown else "one --size, or a --mix"
        raise OperatorError(f"{wrong}; there are: {', '.join(SIZES)}")
    experiment = Experiment(
        trace=trace, profiles=profiles, size=sizes[0] if sizes else "7b", models=models,
        assumptions=assume(assumed), **more,
    )  # fmt: skip
    if seeds == 1:
        outcome = run(experiment)
        return _json({name: getattr(outcome, name) for name in _TOLD}) if as_json else as_text(outcome)
    several = run_seeds(experiment, seeds)
    if as_json:
        return _json({**several.mean, "seeds": seeds, "half_width_95": several.half_width_95})
    figures = {name: several.mean[name] for name in Outcome.__struct_fields__}
    within = several.half_width_95["slo_rate"]
    return f"{as_text(msgspec.convert(figures, Outcome, strict=False))}\n{'seeds':<12} {seeds}; SLO rate ± {within:.2%}"


def _json(words: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(words), indent=2).decode()
