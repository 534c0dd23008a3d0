"""How does a person say which models there are?"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
from llmhostd_tui.words import spell_bytes

from llmhostd.api.service import ModelRegistration
from llmhostd.cli.copies import delete, leftovers, say_what_becomes, taken
from llmhostd.cli.daemon_client import config_of, daemon_if_running, running_daemon
from llmhostd.cli.registry import check_servable, model_files, register, registered, remove
from llmhostd.cli.remote_models import bring
from llmhostd.cli.root import Place, example
from llmhostd.cli.terminal import NO_MODELS, PlainTable, console
from llmhostd.cli.verify import verify
from llmhostd.daemon.registration import NAME, checked_name, examine
from llmhostd.domain.errors import CallerError, LlmhostdError
from llmhostd.domain.model import ComputePrecision, KvPrecision, WeightFormat
from llmhostd.domain.snapshot import ModelSnapshot
from llmhostd.loader.adapter import is_adapter
from llmhostd.loader.adapter_copy import copy_adapter, is_adapter_copy
from llmhostd.loader.convert import convert, is_copy_of
from llmhostd.loader.progress import drawn_progress
from llmhostd.loader.remote_store import RemotePlace
from llmhostd.loader.remote_url import is_url
from llmhostd.loader.store_index import arrives, is_store

POSITIVE = click.FloatRange(min=0, min_open=True)
QUANTIZED = {"int8": WeightFormat.INT8, "int4": WeightFormat.INT4}


@click.group(epilog=example("models list", "models add /srv/models/qwen3-0.6b --quantize int8", "models rm qwen3-0.6b"))
def models() -> None:
    """Add, list, pull and remove models."""


def _serving_options(command: Callable[..., None]) -> Callable[..., None]:
    """What may be said of a model when it is added, wherever it comes from."""
    for option in reversed((
        click.option("--name", help="What callers ask for.  [default: as the directory, or the repository]"),
        click.option("--quantize", "quantized", type=click.Choice(list(QUANTIZED)), help="Make the copy smaller."),
        click.option("--in-place", is_flag=True, help="Serve the files where they lie, without a copy that loads faster"
                     " and is checked."),
        click.option("--compute", type=click.Choice(["auto", *(one.value for one in ComputePrecision)]),
                     help="Precision of arithmetic.  [default: as configured]"),
        click.option("--kv", type=click.Choice([one.value for one in KvPrecision]),
                     help="Precision of keys and values.  [default: as configured]"),
        click.option("--base", help="Of a LoRA adapter: the model that it was made for.  [default: as it says itself]"),
        click.option("--ttft", "ttft_s", type=POSITIVE, help="Promised seconds to the first token."),
        click.option("--tpot", "tpot_s", type=POSITIVE, help="Promised seconds per output token."),
    )):  # fmt: skip
        command = option(command)
    return command


@models.command(
    short_help="Add a checkpoint, or an adapter.",
    epilog=example(
        "models add /srv/models/qwen3-0.6b",
        "models add ./llama --name chat --quantize int8",
        "models add peer://box2:11500/qwen3-0.6b",
        "models add s3://models/team/qwen3-0.6b",
    ),
)
@click.argument("path", metavar="PATH|URL")
@_serving_options
@click.option("--peer-key", envvar="LLMHOSTD_PEER_KEY", show_envvar=True, default="", metavar="KEY",
              help="API key of the daemon at a peer: address.")  # fmt: skip
@click.pass_obj
def add(place: Place, /, path: str, name: str | None, peer_key: str, **options: Any) -> None:
    """Add the checkpoint in directory PATH (safetensors, config.json, tokenizer.json), or the LoRA adapter there.

    Its files are only read: a copy that is made for loading, with checksums, is put into the state directory. An
    adapter (PEFT's adapter_config.json, adapter_model.safetensors) shares the weights of its base, a model here.

    Of a URL, where such a copy lies, all but the weights is fetched now; they come, and stay, when the model is first
    loaded. It is https://HOST/PATH/NAME (any server of files that serves ranges), peer://HOST:PORT/NAME (another
    daemon's model) or s3://BUCKET/PATH/NAME. Added again from elsewhere, it has one more place to come from.
    """
    if is_url(path):
        _serve_remote(place, RemotePlace(path, peer_key), name, **options)
    else:
        _serve_local(place, Path(path).expanduser().absolute(), name, **options)


def _serve_local(place: Place, path: Path, name: str | None, **options: Any) -> None:
    if name is None and not NAME.fullmatch(path.name):
        raise CallerError(f"name: the directory's, {path.name!r}, is none for a model; give --name", field="name")
    _serve(place, path, path.name if name is None else name, named=name is not None, source="local", **options)


@models.command(
    short_help="Fetch a model from the Hugging Face hub and add it.",
    epilog=example("models pull Qwen/Qwen3-0.6B", "models pull Qwen/Qwen3-0.6B --name chat --quantize int8"),
)
@click.argument("repository", metavar="ORG/NAME")
@click.option("--revision", default="main", help="Branch, tag or commit.", show_default=True)
@_serving_options
@click.pass_obj
def pull(place: Place, /, repository: str, revision: str, name: str | None, **options: Any) -> None:
    """Fetch a model from the Hugging Face hub (or $HF_ENDPOINT) and add it.

    Resumes what was interrupted, and checks what arrived. $HF_TOKEN opens gated models. What was fetched is deleted
    once the copy that is made for loading is complete.
    """
    if place.url:
        raise CallerError("models pull works on the daemon's own machine only: leave out --url", field="url")
    from llmhostd.loader.hub import pull as fetched  # a sixth of what any other command takes to begin

    _check_copied(options["quantized"], in_place=options["in_place"])
    if name is not None:
        checked_name(name)
    with drawn_progress() as draw:
        path = fetched(repository, model_files(place), config_of(place).fetch, revision=revision, progress=draw)
    _serve(
        place,
        path,
        repository.rpartition("/")[2] if name is None else name,
        named=name is not None,
        source=repository,
        **options,
    )
    if str(path) not in {known.path for known in registered(place)}:
        delete(path)


def _serve_remote(
    place: Place, there: RemotePlace, name: str | None, *, quantized: str | None, in_place: bool, **options: Any
) -> None:
    """Fetch what is small, and register."""
    if place.url:
        raise CallerError("models add URL works on the daemon's own machine only: leave out --url", field="url")
    for option, given in (("--quantize", quantized), ("--in-place", in_place)):
        if given:
            raise CallerError(f"{option} is not for a URL: what lies there is served as it is", field="path")
    name = checked_name(there.url.name if name is None else name)
    path = model_files(place) / name
    new = bring(there, path, name, config_of(place).fetch)
    try:
        _serve(place, path, name, named=True, source=there.url.shown, quantized=None, in_place=True, **options)
    except LlmhostdError:
        if new:
            delete(path)
        raise
    if arrives(path):
        click.echo(
            f"its weights are fetched when it is first loaded: `llmhostd models load {name}` does so now", err=True
        )


def _serve(
    place: Place, path: Path, name: str, *, named: bool, source: str, quantized: str | None, in_place: bool,
    compute: str | None, kv: str | None, base: str | None, ttft_s: float | None, tpot_s: float | None,
) -> None:  # fmt: skip
    """Check, make the copy that is served, and register."""
    _check_copied(quantized, in_place=in_place)
    if quantized and not named:
        name = f"{name}-{quantized}"
    registration = ModelRegistration(
        name=name, path=str(path), compute=compute or "", kv=kv or "", ttft_s=ttft_s, tpot_s=tpot_s, source=source,
        base=base or "",
    )  # fmt: skip
    adapter = is_adapter(path)
    if quantized and adapter:
        raise CallerError("--quantize is for models: an adapter is computed beside its base", field="quantize")
    if not place.url:
        model = examine(registration, registered(place))
        weights = QUANTIZED[quantized] if quantized else model.shape.weights
        check_servable(
            place, msgspec.structs.replace(model, shape=msgspec.structs.replace(model.shape, weights=weights))
        )
    elif quantized:
        raise CallerError("--quantize works on the daemon's own machine only: leave out --url", field="quantize")
    if quantized or not (in_place or place.url or is_store(path)):
        copy = keep_adapter(place, path, name) if adapter else make_store(place, path, name, quantized)
        registration = msgspec.structs.replace(registration, path=str(copy))
    register(place, registration)
    click.echo(f'{name} is added: llmhostd run {name} "..."')


def _check_copied(quantized: str | None, *, in_place: bool) -> None:
    if quantized and in_place:
        raise CallerError("--quantize makes a copy: leave out --in-place", field="in_place")


@models.command("list", epilog=example("models list"))
@click.pass_obj
def list_(place: Place) -> None:
    """List models, with their states if the daemon runs."""
    with daemon_if_running(place) as daemon:
        live = daemon.get("/api/v1/models", tuple[ModelSnapshot, ...]) if daemon else None
    table = PlainTable("MODEL", "FAMILY", "PARAMS", "WEIGHTS", "SIZE", "CONTEXT", "STATE",
                       spare=("PARAMS", "FAMILY", "CONTEXT", "WEIGHTS"))  # fmt: skip
    for one in live or ():
        weights = f"on {one.base}" if one.base else one.weights
        table.add_row(one.name, one.family, _millions(one.parameters), weights, spell_bytes(one.weight_bytes),
                      str(one.max_context_tokens), f"{one.state}  {one.because or _to_come(one)}".strip())  # fmt: skip
    for known in registered(place) if live is None else ():
        shape, a, adapter = known.shape, known.shape.architecture, known.adapter
        weights, size = (f"on {adapter.base}", adapter.bytes) if adapter else (shape.weights, shape.weight_bytes)
        table.add_row(known.name, a.family, _millions(known.parameters), weights, spell_bytes(size),
                      str(a.max_context_tokens), "no daemon")  # fmt: skip
    console().print(table if len(table) else NO_MODELS)


@models.command(epilog=example("models rm qwen3-0.6b", "models rm qwen3-0.6b --keep-files"))
@click.argument("name")
@click.option("--keep-files", is_flag=True, help="Leave the copy that was made for it, to be added again.")
@click.pass_obj
def rm(place: Place, /, name: str, keep_files: bool) -> None:
    """Forget model NAME, and delete the copy that was made for it. What it was made from is never touched.

    What runs, runs to its end. Of a NAME that is not served, what an interrupted add or pull left is deleted.
    """
    if place.url:
        remove(place, name)
        click.echo(f"{name} is gone; files on that machine stay")
        return
    known = {str(one.name): one for one in registered(place)}
    left = [
        one for one in leftovers(model_files(place), {Path(one.path) for one in known.values()}) if one.name == name
    ]
    if name in known or not left:
        remove(place, name)
        model = known.pop(name)
        click.echo(f"{name} is gone; {say_what_becomes(place, model, known.values(), keep=keep_files)}")
    for one in left:
        delete(one.path)
        click.echo(f"{one.path} is deleted: {one.what} ({spell_bytes(one.bytes)})")


models.add_command(verify)


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


def make_store(place: Place, source: Path, name: str, kind: str | None) -> Path:
    """A copy in the state directory that is made for loading; raises OperatorError if something else is there."""
    destination, weights = model_files(place) / name, QUANTIZED[kind] if kind else None
    with drawn_progress() as draw:
        reading = partial(draw, f"reading {source.name}")
        if not destination.exists():
            what = f"making {name}" if kind is None else f"making {name} ({kind})"
            convert(source, destination, weights, partial(draw, what), reading)
        elif destination != source and not is_copy_of(destination, source, weights, reading):
            raise taken(destination, name)
    return destination


def keep_adapter(place: Place, source: Path, name: str) -> Path:
    """A copy of an adapter in the state directory; raises OperatorError if something else is there."""
    destination = model_files(place) / name
    if destination.exists():
        if destination == source or is_adapter_copy(destination, source):
            return destination
        raise taken(destination, name)
    copy_adapter(source, destination)
    return destination


def _to_come(one: ModelSnapshot) -> str:
    return f"{spell_bytes(one.remote_bytes)} to be fetched" if one.remote_bytes else ""


def _millions(parameters: int) -> str:
    return f"{parameters / 1e9:.1f} B" if parameters >= 1e9 else f"{parameters / 1e6:.0f} M"
