"""Where does the daemon remember? One SQLite file in WAL mode, so that a reader never waits for the daemon."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from sqlite_utils import Database

from llmhostd.domain.errors import OperatorError
from llmhostd.state.migrations import migrate

DATABASE_FILE = "state.db"


def open_database(directory: Path) -> Database:
    """Open and migrate `state.db` in a directory that exists. Raises OperatorError naming the file.

    Commits are in the log at once and on the disk at the next checkpoint: a power cut may lose the last of them, but
    not the file, nor what was written within `durable`. The connection may be used from any thread, by one at a time.
    """
    file = directory / DATABASE_FILE
    try:
        connection = sqlite3.connect(file, timeout=10.0, check_same_thread=False)
        db = Database(connection)
        db.enable_wal()
        db.execute("pragma synchronous = normal")
        migrate(db)
    except sqlite3.Error as error:
        raise OperatorError(f"{file}: {error}") from error
    return db


@contextlib.contextmanager
def durable(db: Database) -> Iterator[None]:
    """Let transactions in this block return only once they are on the disk: no power cut takes them back."""
    db.execute("pragma synchronous = full")
    try:
        yield
    finally:
        db.execute("pragma synchronous = normal")
