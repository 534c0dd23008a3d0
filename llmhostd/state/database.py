"""Where does the daemon remember? One SQLite file in WAL mode, so that a reader never waits for the daemon."""

import contextlib
import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from sqlite_utils import Database

from llmhostd.domain.errors import OperatorError
from llmhostd.state.migrations import migrate

DATABASE_FILE = "state.db"
_LITTLE_BYTES = 1 << 20
"""What SQLite needs beside the file, several times over."""


def open_database(directory: Path) -> Database:
    """Open and migrate `state.db` in a directory that exists. Raises OperatorError naming the file.

    Commits are in the log at once and on the disk at the next checkpoint: a power cut may lose the last of them, but
    not the file, nor what was written within `durable`. The connection may be used from any thread, by one at a time.
    """
    file = directory / DATABASE_FILE
    try:
        with _one_at_a_time(directory):
            connection = sqlite3.connect(file, timeout=10.0, check_same_thread=False)
            db = Database(connection)
            db.enable_wal()
            db.execute("pragma synchronous = normal")
            migrate(db)
    except (OSError, sqlite3.Error) as error:
        raise OperatorError(f"{file}: {spell_error(error, file)}") from error
    return db


def spell_error(error: Exception, file: Path) -> str:
    """Say what is wrong with a database. SQLite's own words for a full disk, and for another's file, are misleading."""
    if isinstance(error, sqlite3.OperationalError):
        if file.exists() and not os.access(file, os.W_OK):
            return "this user may not write it"
        if shutil.disk_usage(file.parent).free < _LITTLE_BYTES:
            return "no space is left on its disk"
    return str(error)


@contextlib.contextmanager
def _one_at_a_time(directory: Path) -> Iterator[None]:
    """SQLite does not wait for its turn to switch a new file to WAL: it fails with "database is locked" at once."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def durable(db: Database) -> Iterator[None]:
    """Let transactions in this block return only once they are on the disk: no power cut takes them back."""
    db.execute("pragma synchronous = full")
    try:
        yield
    finally:
        db.execute("pragma synchronous = normal")
