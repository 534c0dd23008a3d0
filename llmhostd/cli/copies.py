"""Which files did llmhostd itself make for models, which of them are nobody's any more, and how do they go?"""

import os
import shutil
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import click
from llmhostd_tui.words import spell_bytes

from llmhostd.cli.daemon_client import daemon_if_running
from llmhostd.cli.registry import model_files
from llmhostd.cli.root import Place
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.snapshot import InstanceSnapshot, RequestSnapshot
from llmhostd.loader.store_directory import PARTIAL, locked
from llmhostd.state.models import RegisteredModel

_REMOVED = ".removed"
_UNFINISHED = {
    PARTIAL: "an unfinished copy",
    ".unfinished": "an unfinished copy or download",
    ".replaced": "a download that a newer one replaced",
    _REMOVED: "a copy whose deletion was interrupted",
}
"""What a hidden directory beside the models is, by its suffix."""
_SAY_AFTER_S = 1.0


@dataclass(frozen=True)
class Leftover:
    """A directory that no model is served from."""

    name: str
    path: Path
    what: str
    bytes: int


def leftovers(directory: Path, served: Collection[Path]) -> list[Leftover]:
    """Find what interruptions left in the models' directory, and whole copies that no model is served from.

    Not what somebody makes at this moment.
    """
    found = []
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        if path in served or path.is_symlink() or not path.is_dir() or _in_use(path):
            continue
        if not path.name.startswith("."):
            found.append(Leftover(path.name, path, "a copy that no model is served from", size_bytes(path)))
        elif path.suffix in _UNFINISHED:
            name = path.name.removeprefix(".").removesuffix(path.suffix)
            found.append(Leftover(name, path, _UNFINISHED[path.suffix], size_bytes(path)))
    return found


def say_what_becomes(place: Place, model: RegisteredModel, others: Collection[RegisteredModel], *, keep: bool) -> str:
    """Delete the copy that was made for a model which is gone, if it is nobody else's; says what became of its files.

    What still runs on it ends first.
    """
    path, sharers = Path(model.path), sorted(one.name for one in others if one.path == model.path)
    if not path.is_relative_to(model_files(place)) or path.is_symlink():
        return f"its files in {path} were served where they lie, and stay"
    if sharers:
        return f"its files in {path} are also those of {', '.join(sharers)}, and stay"
    if keep:
        return f"its copy in {path} stays"
    freed_bytes = size_bytes(path)
    wait_until_unused(place, model.name)
    delete(path)
    return f"its copy in {path} is deleted ({spell_bytes(freed_bytes)})"


def wait_until_unused(place: Place, name: str) -> None:
    """Wait until the daemon, if one runs, has nothing of a model any more."""
    began_s, said = time.monotonic(), False
    with daemon_if_running(place) as daemon:
        while daemon is not None:
            running = [one.model for one in daemon.get("/api/v1/instances", tuple[InstanceSnapshot, ...])]
            running += [one.model for one in daemon.get("/api/v1/requests", tuple[RequestSnapshot, ...])]
            if name not in running:
                return
            if not said and time.monotonic() - began_s > _SAY_AFTER_S:
                click.echo(f"its files go once nothing runs on {name} any more", err=True)
                said = True
            time.sleep(0.1)


def taken(destination: Path, name: str) -> OperatorError:
    """Say that something else is there."""
    return OperatorError(f"{destination} exists: `llmhostd models rm {name}` deletes it, or give another --name")


def delete(path: Path) -> None:
    """Delete a directory that is ours; under its name it is gone at once. Raises OperatorError."""
    going = path if path.suffix == _REMOVED else path.with_name(f".{path.name.lstrip('.')}{_REMOVED}")
    try:
        if going != path:
            if going.exists():
                shutil.rmtree(going)
            path.rename(going)
        shutil.rmtree(going)
    except FileNotFoundError:
        return  # somebody else deleted it meanwhile
    except OSError as error:
        raise OperatorError(f"{error.filename or path}: cannot be deleted: {error.strerror}") from error


def size_bytes(directory: Path) -> int:
    """What its files take; 0 for what is not there."""
    return sum(one.stat().st_size for one in directory.iterdir() if one.is_file()) if directory.is_dir() else 0


def _in_use(path: Path) -> bool:
    """Whether somebody makes it now: whoever does holds a lock on it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return not locked(descriptor)
    finally:
        os.close(descriptor)
