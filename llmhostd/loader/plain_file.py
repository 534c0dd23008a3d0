"""How is a file opened that is said to be part of a checkpoint? What else has its name is an error, and no wait.

A pipe would keep whoever opens it waiting, a device has no end.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from llmhostd.domain.errors import CheckpointError


@contextlib.contextmanager
def opened(file: Path) -> Iterator[BinaryIO]:
    """Open a plain file, or the one that a link leads to. Raises CheckpointError naming it, while it is read, too."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise CheckpointError(f"{file}: is not a plain file")
            with open(descriptor, "rb", closefd=False) as stream:
                yield stream
        finally:
            os.close(descriptor)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {_why(file, error)}") from error


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raise CheckpointError where a file, or what lies in a directory, cannot be read, or may not be looked at."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{error.filename or path}: cannot be read: {error.strerror}") from error


class FileState(NamedTuple):
    """What is another if a file is another, or was written to."""

    device: int
    inode: int
    changed_ns: int
    size_bytes: int


def state_of(status: os.stat_result) -> FileState:
    """Pick that out of what the system says of a file."""
    return FileState(status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)


def content(file: Path, most_bytes: int) -> bytes:
    """Read all of a small one. Raises CheckpointError, for one that is larger, too."""
    with opened(file) as stream:
        # Python makes room for all that is asked for, whatever there is to read.
        size = os.fstat(stream.fileno()).st_size
        read = stream.read(min(size, most_bytes) + 1)
    if len(read) > most_bytes:
        raise CheckpointError(f"{file}: is larger than {most_bytes} bytes")
    return read


def _why(file: Path, error: OSError) -> str:
    if error.errno == errno.ENOENT and file.is_symlink():
        return f"it is a link to {file.readlink()}, where nothing is"
    return str(error.strerror)
