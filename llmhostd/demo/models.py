"""How do demo models get onto the disk, whole or not at all?"""

import fcntl
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

from llmhostd.demo.catalog import DEMO_MODELS, DemoModel
from llmhostd.domain.errors import CallerError, OperatorError
from llmhostd.loader.convert import convert
from llmhostd.loader.progress import Progress, no_progress


def make_demo_models(
    directory: Path, names: Sequence[str] | None = None, progress: Progress = no_progress
) -> list[Path]:
    """Make the named demo models (all of them by default) in `directory`; those that exist are left as they are.

    `progress` hears (name, bytes so far, bytes in all). Returns their checkpoint directories, in order. Raises
    CallerError for an unknown name, OperatorError if the disk is full or not writable; nothing half-made stays.
    """
    models = DEMO_MODELS if names is None else [_named(name) for name in names]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _alone(directory):
            return [_make(directory, model, progress) for model in models]
    except OSError as error:
        raise OperatorError(f"{directory}: demo models cannot be made: {error.strerror or error}") from error


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Wait until nobody else makes demo models here."""
    with (directory / ".demo-models.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _named(name: str) -> DemoModel:
    known = {model.name: model for model in DEMO_MODELS}
    if name not in known:
        near = get_close_matches(name, known, n=1, cutoff=0.0)[0]
        raise CallerError(f"no demo model {name!r}; nearest: {near!r}", field="names")
    return known[name]


def _make(directory: Path, model: DemoModel, progress: Progress) -> Path:
    final = directory / model.name
    if (final / "config.json").is_file():
        progress(model.name, model.stored_bytes, model.stored_bytes)
        return final
    unfinished = directory / f".{model.name}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
    done, total = 0, 2 * model.stored_bytes  # written as any checkpoint is, then made into a store

    def written(size: int) -> None:
        nonlocal done
        done += size
        progress(model.name, min(done, model.stored_bytes), total)

    progress(model.name, 0, total)
    try:
        unfinished.mkdir()
        model.fill(unfinished, written)
        convert(
            unfinished, final, None, lambda at, of: progress(model.name, total // 2 + at * (total // 2) // of, total)
        )
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    progress(model.name, total, total)
    return final
