"""How does a person say which models there are?"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
from llmhostd_tui.words import spell_bytes

from llmhostd.api.service import ModelRegistration
from llmhostd.cli.daemon_client import daemon_if_running, running_daemon
from llmhostd.cli.registry import check_servable, model_files, register, registered, remove
from llmhostd.cli.root import Place, example
from llmhostd.cli.terminal import console, plain_table
from llmhostd.daemon.registration import examine
from llmhostd.domain.errors import CallerError, OperatorError
from llmhostd.domain.model import ComputePrecision, KvPrecision, WeightFormat
from llmhostd.domain.snapshot import ModelSnapshot
from llmhostd.loader import hub
from llmhostd.loader.progress import drawn_progress
from llmhostd.loader.quantize import quantize

POSITIVE = click.FloatRange(min=0, min_open=True)
QUANTIZED = {"int8": WeightFormat.INT8, "int4": WeightFormat.INT4}


@click.group(epilog=example("models list", "models add /srv/models/qwen3-0.6b --quantize int8", "models rm qwen3-0.6b"))
def models() -> None:
    """Add, list, pull and remove models."""


def _serving_options(command: Callable[..., None]) -> Callable[..., None]:
    """What may be said of a model when it is added, wherever it comes from."""
    for option in reversed((
        click.option("--name", help="What callers ask for.  [default: as the directory, or the repository]"),
        click.option("--quantize", "quantized", type=click.Choice(list(QUANTIZED)), help="Make a smaller copy, once."),
        click.option("--compute", type=click.Choice(["auto", *(one.value for one in ComputePrecision)]),
                     help="Precision of arithmetic.  [default: as configured]"),
        click.option("--kv", type=click.Choice([one.value for one in KvPrecision]),
                     help="Precision of keys and values.  [default: as configured]"),
        click.option("--ttft", "ttft_s", type=POSITIVE, help="Promised seconds to the first token."),
        click.option("--tpot", "tpot_s", type=POSITIVE, help="Promised seconds per output token."),
    )):  # fmt: skip
        command = option(command)
    return command


@models.command(epilog=example("models add /srv/models/qwen3-0.6b", "models add ./llama --name chat --quantize int8"))
@click.argument("path", type=click.Path(path_type=Path))
@_serving_options
@click.pass_obj
def add(place: Place, /, path: Path, name: str | None, **options: Any) -> None:
    """Add the checkpoint in directory PATH (safetensors, config.json, tokenizer.json).

    Its files stay where they are. With --quantize a smaller copy is made in the state directory.
    """
    path = path.expanduser().absolute()
    _serve(place, path, name or path.name, named=name is not None, source="local", **options)


@models.command(
    epilog=example("models pull Qwen/Qwen3-0.6B", "models pull Qwen/Qwen3-0.6B --name chat --quantize int8")
)
@click.argument("repository", metavar="ORG/NAME")
@click.option("--revision", default="main", help="Branch, tag or commit.", show_default=True)
@_serving_options
@click.pass_obj
def pull(place: Place, /, repository: str, revision: str, name: str | None, **options: Any) -> None:
    """Fetch a model from the Hugging Face hub (or $HF_ENDPOINT) and add it.

    Resumes what was interrupted, and checks what arrived. $HF_TOKEN opens gated models.
    """
    if place.url:
        raise CallerError("models pull works on the daemon's own machine only: leave out --url", field="url")
    with drawn_progress() as draw:
        path = hub.pull(repository, model_files(place), revision=revision, progress=draw)
    _serve(place, path, name or repository.rpartition("/")[2], named=name is not None, source=repository, **options)


def _serve(
    place: Place, path: Path, name: str, *, named: bool, source: str, quantized: str | None, compute: str | None,
    kv: str | None, ttft_s: float | None, tpot_s: float | None,
) -> None:  # fmt: skip
    """Check, make smaller if that is wanted, and register."""
    if quantized and not named:
        name = f"{name}-{quantized}"
    registration = ModelRegistration(
        name=name, path=str(path), compute=compute or "", kv=kv or "", ttft_s=ttft_s, tpot_s=tpot_s, source=source
    )
    if not place.url:
        model = examine(registration)
        weights = QUANTIZED[quantized] if quantized else model.shape.weights
        check_servable(
            place, msgspec.structs.replace(model, shape=msgspec.structs.replace(model.shape, weights=weights))
        )
    elif quantized:
        raise CallerError("--quantize works on the daemon's own machine only: leave out --url", field="quantize")
    if quantized:
        smaller = make_quantized(place, path, name, quantized)
        registration = msgspec.structs.replace(registration, path=str(smaller))
    register(place, registration)
    click.echo(f'{name} is added: llmhostd run {name} "..."')


@models.command("list", epilog=example("models list"))
@click.pass_obj
def list_(place: Place) -> None:
    """List models, with their states if the daemon runs."""
    with daemon_if_running(place) as daemon:
        live = daemon.get("/api/v1/models", tuple[ModelSnapshot, ...]) if daemon else None
    table = plain_table("MODEL", "FAMILY", "PARAMS", "WEIGHTS", "SIZE", "CONTEXT", "STATE")
    for one in live or ():
        table.add_row(one.name, one.family, _millions(one.parameters), one.weights, spell_bytes(one.weight_bytes),
                      str(one.max_context_tokens), f"{one.state}  {one.because}".strip())  # fmt: skip
    for known in registered(place) if live is None else ():
        shape, a = known.shape, known.shape.architecture
        table.add_row(known.name, a.family, _millions(known.parameters), shape.weights, spell_bytes(shape.weight_bytes),
                      str(a.max_context_tokens), "no daemon")  # fmt: skip
    console().print(table if table.row_count else "no models yet: llmhostd models add PATH, or llmhostd demo-models")


@models.command(epilog=example("models rm qwen3-0.6b", "models rm qwen3-0.6b-int8 --files"))
@click.argument("name")
@click.option("--files", is_flag=True, help="Also delete its files, if they lie in the state directory.")
@click.pass_obj
def rm(place: Place, /, name: str, files: bool) -> None:
    """Forget model NAME. What runs, runs to its end."""
    known = {str(one.name): one for one in registered(place)} if files else {}
    remove(place, name)
    click.echo(f"{name} is gone")
    if files and (model := known.get(name)):
        delete_files(place, Path(model.path), [Path(one.path) for one in known.values() if one.name != name])


def _asks(action: str, sentence: str, done: str) -> None:
    """Commands that the daemon alone can follow."""

    @models.command(action, help=sentence, epilog=example(f"models {action} qwen3-0.6b"))
    @click.argument("name")
    @click.pass_obj
    def command(place: Place, /, name: str) -> None:
        with running_daemon(place) as daemon:
            daemon.post(f"/api/v1/models/{name}/{action}", {}, object)
        click.echo(f"{name}: {done}")


_asks("load", "Load model NAME before anybody asks for it.", "is being loaded; `llmhostd ps` shows it")
_asks("unload", "Give back the memory of model NAME once it is idle.", "goes when it is idle")
_asks("release", "Let quarantined model NAME try again.", "may be asked for again")


def make_quantized(place: Place, source: Path, name: str, kind: str) -> Path:
    """A smaller copy in the state directory; raises OperatorError if one is there."""
    destination = model_files(place) / name
    if destination.exists():
        raise OperatorError(f"{destination} exists: `llmhostd models rm {name} --files`, or give another --name")
    destination.parent.mkdir(parents=True, exist_ok=True)
    with drawn_progress() as draw:
        what = f"{source.name} to {kind}"
        quantize(source, destination, QUANTIZED[kind], lambda done, total: draw(what, done, total))
    return destination


def delete_files(place: Place, path: Path, others: list[Path]) -> None:
    """Delete a checkpoint that is ours alone; leaves anybody else's."""
    if not path.is_relative_to(model_files(place)):
        click.echo(f"its files in {path} are not llmhostd's: they stay", err=True)
    elif path in others:
        click.echo(f"its files in {path} are another model's too: they stay", err=True)
    else:
        shutil.rmtree(path)
        click.echo(f"{path} is deleted")


def _millions(parameters: int) -> str:
    return f"{parameters / 1e9:.1f} B" if parameters >= 1e9 else f"{parameters / 1e6:.0f} M"
