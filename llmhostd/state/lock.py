"""Who owns this state? One process at a time may change it."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from llmhostd.domain.errors import OperatorError

LOCK_FILE = "llmhostd.lock"


@contextlib.contextmanager
def own_state(directory: Path) -> Iterator[None]:
    """Hold the directory's lock, making the directory if need be.

    The kernel drops the lock when the process ends, however it ends: the pid in the file is for people only.
    Raises OperatorError naming the pid that holds it.
    """
    descriptor = _open(directory)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise OperatorError(
                f"{directory}: in use by another llmhostd (pid {holder}); stop it, or choose another --state-dir"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _open(directory: Path) -> int:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Not inherited by workers: a worker that outlives a killed daemon must not hold the state.
        return os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise OperatorError(f"{directory}: cannot keep state here: {error.strerror}") from error
