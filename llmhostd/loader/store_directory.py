"""How does a directory appear whole or not at all?

It is made beside its place, under a hidden name, by one process at a time, and gets its own name only when everything
in it is on the disk.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llmhostd.domain.errors import OperatorError

PARTIAL = ".partial"
"""Suffix of its name until it is whole."""


@contextmanager
def making(destination: Path) -> Iterator[Path]:
    """Fill the directory that this yields; it becomes `destination` at the end.

    What an interruption, or a kill, left of it is in there; after a failure nothing is left. Raises OperatorError when
    the destination exists, is being made by somebody else, or cannot be written.
    """
    partial = partial_of(destination)
    try:
        with alone(partial, destination), _nothing_left_if_it_fails(partial):
            if destination.exists():
                raise OperatorError(f"{destination}: exists already")
            yield partial
            _sync_all(partial)
            partial.rename(destination)
            sync(destination.parent)
    except OSError as error:
        raise OperatorError(f"{destination}: cannot be written: {error.strerror}") from error


def partial_of(destination: Path) -> Path:
    """Where a store is made, and what an interruption leaves."""
    return destination.with_name(f".{destination.name}{PARTIAL}")


@contextmanager
def _nothing_left_if_it_fails(partial: Path) -> Iterator[None]:
    """A failure that would come again leaves no data; only an interruption, or a kill, leaves what can be taken up."""
    try:
        yield
    except Exception:
        shutil.rmtree(partial, ignore_errors=True)
        raise


@contextmanager
def alone(partial: Path, destination: Path) -> Iterator[None]:
    """Make the directory `partial`, or take it up, and let nobody else. The lock goes with it, or with the process.

    Raises OperatorError when somebody else makes `destination` at this moment.
    """
    descriptor = _opened(partial)
    try:
        # It may be gone although it is ours: another process has just finished it, or given it up.
        if not (locked(descriptor) and still_there(descriptor, partial)):
            raise OperatorError(f"{destination}: is being made by another process")
        yield
    finally:
        os.close(descriptor)


def locked(descriptor: int) -> bool:
    """Lock what is open; False: another process has. The lock goes when the descriptor, or the process, does."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _opened(partial: Path) -> int:
    while True:
        partial.mkdir(parents=True, exist_ok=True)
        try:
            return os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # it went as we came


def still_there(descriptor: int, path: Path) -> bool:
    """Whether what is open is still what has that name."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    ours = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)


def _sync_all(directory: Path) -> None:
    for file in directory.iterdir():
        sync(file)
    sync(directory)


def sync(path: Path) -> None:
    """Have a file, or the names in a directory, on the disk when this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
