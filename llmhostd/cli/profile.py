"""How does a person see, measure and verify how long iterations take?"""

from collections.abc import Sequence
from pathlib import Path

import click
from llmhostd_tui.words import spell_seconds

from llmhostd.cli.daemon_client import DaemonClient, config_of, daemon_if_running, state_dir_of
from llmhostd.cli.profiling import measure_here, measure_there, verify_here
from llmhostd.cli.registry import existing_database, registered, specs, unknown_model
from llmhostd.cli.root import Place, example
from llmhostd.cli.terminal import PlainTable, console
from llmhostd.compute.estimator import ProfiledEstimator
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.model import ModelSpec
from llmhostd.domain.profile import LatencyModel, Profile
from llmhostd.engines.huge_pages import begin_again_with_huge_pages
from llmhostd.state.database import open_database
from llmhostd.state.lock import own_state
from llmhostd.state.profiles import ProfileTable
from llmhostd.worker.verify import Deviation, Kind, mean_deviation


@click.command(
    epilog=example("profile", "profile qwen3-0.6b", "profile qwen3-0.6b --verify", "profile --verify --loads 20")
)
@click.argument("names", metavar="[MODEL]...", nargs=-1)
@click.option("--verify", "verifies", is_flag=True, help="Predict random loads, run them, and say how far off the "
              "predictions are. Needs the cores for itself: no daemon may be running.")  # fmt: skip
@click.option("--loads", type=click.IntRange(min=1), default=100, help="Random loads of each kind.", show_default=True)
@click.option("--seed", type=int, default=0, help="Of the random loads.", show_default=True)
@click.pass_obj
def profile(place: Place, /, names: tuple[str, ...], verifies: bool, loads: int, seed: int) -> None:
    """Measure how long iterations take, or verify the predictions.

    Without MODEL, shows what was measured. With MODEL, measures it again: in the daemon if it runs, and otherwise here.
    Models of one shape share a profile.
    """
    if verifies or names:
        begin_again_with_huge_pages()
    if verifies:
        _verify(place, names, loads, seed)
        return
    with daemon_if_running(place) as daemon:
        if daemon and names:
            measure_there(daemon, names)
        elif names:
            _measure(place, names)
        _show(place, daemon)


def _measure(place: Place, names: Sequence[str]) -> None:
    config, directory = config_of(place), state_dir_of(place)
    with own_state(directory):
        table = ProfileTable(open_database(directory))
        for spec, path in chosen(place, names):
            hosted, measured = measure_here(config, spec, path)
            table.put(measured)
            hosted.take_apart(hosted.state).unload()


def _verify(place: Place, names: Sequence[str], loads: int, seed: int) -> None:
    with daemon_if_running(place) as daemon:
        if daemon:
            raise OperatorError(
                f"the daemon on {daemon.where} computes on the same cores: stop it, or both are measured wrong"
            )
    config = config_of(place)
    table = PlainTable("MODEL", "KIND", "LOADS", "MEAN RELATIVE ERROR", "P90", "MAX", "MEAN BIAS",
                       "SAME LOAD AGAIN", spare=("LOADS", "MEAN BIAS", "MAX"))  # fmt: skip
    compared = []
    for spec, path in chosen(place, names):
        measured, deviations = verify_here(config, spec, path, loads, seed)
        compared.append(f"{spec.name}: {_compared(measured)}")
        for kind in Kind:
            table.add_row(str(spec.name), kind.value, *_figures([one for one in deviations if one.load.kind is kind]))
    console().print(table)
    for line in compared:
        console().print(line)


def chosen(place: Place, names: Sequence[str]) -> list[tuple[ModelSpec, Path]]:
    """Those models, or the first of every shape; raises UnknownModelError."""
    known, what = {str(one.name): one for one in registered(place)}, specs(place)
    for name in names:
        if name not in known:
            raise unknown_model(name, known)
    if not known:
        raise OperatorError("no model to measure: `llmhostd models add PATH`, or `llmhostd demo-models`")
    by_shape: dict[str, tuple[ModelSpec, Path]] = {}
    for model in [known[name] for name in names] or known.values():
        spec = what[model.name]  # an adapter is measured as its base
        by_shape.setdefault(spec.shape.key, (what[spec.served_by], Path(known[spec.served_by].path)))
    return list(by_shape.values())


def _show(place: Place, daemon: DaemonClient | None) -> None:
    if daemon:
        profiles: Sequence[Profile] = daemon.get("/api/v1/profiles", tuple[Profile, ...])
    else:
        db = existing_database(place)
        profiles = ProfileTable(db).all() if db else []
    if not profiles:
        console().print("nothing is measured yet: the daemon does it when a model is first asked for, or name a MODEL")
        return
    names: dict[str, list[str]] = {}
    for spec in specs(place).values():
        names.setdefault(spec.shape.key, []).append(spec.name)
    table = PlainTable("SHAPE", "MODELS", "HARDWARE", "PREFILL 512", "DECODE x1", "DECODE x16", "LOAD", "FIRST RUN",
                       "PREDICTED BY", spare=("HARDWARE", "SHAPE", "PREDICTED BY", "FIRST RUN", "LOAD"))  # fmt: skip
    for one in profiles:
        table.add_row(*_row(one, names.get(one.shape_key, [])))
    console().print(table)


def _row(one: Profile, names: Sequence[str]) -> tuple[str, ...]:
    estimator = ProfiledEstimator(one)
    prefill_s = estimator.iteration_s(prefill=((512, 0),), decode_batch=0, decode_context=0)
    single_s, batch_s = (estimator.iteration_s(prefill=(), decode_batch=batch, decode_context=512) for batch in (1, 16))
    return (
        one.shape_key, ", ".join(names), one.hardware_key, f"{512 / prefill_s:,.0f} tok/s", f"{single_s * 1e3:.1f} ms",
        f"{batch_s * 1e3:.1f} ms", spell_seconds(one.load_s), spell_seconds(one.first_run_s),
        _compared(one),
    )  # fmt: skip


def _compared(one: Profile) -> str:
    """Which model of latency is used, and how far both were off."""
    if one.interpolation_error is None or one.modules_error is None:
        return one.latency_model.value
    errors = {LatencyModel.INTERPOLATION: one.interpolation_error, LatencyModel.MODULES: one.modules_error}
    other = next(model for model in LatencyModel if model is not one.latency_model)
    used = f"{one.latency_model.value}, {errors[one.latency_model]:.1%} off"
    return f"{used} ({other.value}: {errors[other]:.1%})"


def _figures(deviations: Sequence[Deviation]) -> tuple[str, ...]:
    errors = sorted(one.relative for one in deviations)
    bias = sum((one.predicted_s - one.measured_s) / one.measured_s for one in deviations) / len(deviations)
    p90 = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
    mean = mean_deviation(deviations, deviations[0].load.kind)
    floor = sum(one.repeated for one in deviations) / len(deviations)
    return str(len(errors)), f"{mean:.1%}", f"{p90:.1%}", f"{errors[-1]:.1%}", f"{bias:+.1%}", f"{floor:.1%}"
