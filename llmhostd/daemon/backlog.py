"""What should be in the database and is not, because the disk did not take it?

Writes wait here in the order in which they were asked, and are tried again with the next one: what a full disk held
back is stored once there is room.
"""

import logging
import sqlite3
from collections import deque
from collections.abc import Callable

from llmhostd.state.database import DATABASE_FILE

log = logging.getLogger(__name__)

MOST_WAITING = 10_000
"""Writes; the oldest goes first."""

Write = Callable[[], object]


class Backlog:
    """Of the one thread that owns the database; `trouble` may be read from any."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, Write]] = deque(maxlen=MOST_WAITING)
        self.trouble = ""
        """What is not stored, and why, for people; empty if nothing waits."""

    def write(self, what: str, call: Write) -> None:
        """Write in turn, now or later; `what` is how a person calls it. What waiting does not mend is logged."""
        self._waiting.append((what, call))
        self.catch_up()

    def catch_up(self) -> sqlite3.Error | None:
        """Try what waits; returns what is in the way of the first that still does."""
        while self._waiting:
            what, call = self._waiting[0]
            try:
                call()
            except sqlite3.OperationalError as error:
                self._held_back(error)
                return error
            except sqlite3.Error:
                log.exception("%s: not stored: %s", DATABASE_FILE, what)
            self._waiting.popleft()
        if self.trouble:
            log.warning("%s: everything is stored again", DATABASE_FILE)
            self.trouble = ""
        return None

    def _held_back(self, error: sqlite3.Error) -> None:
        names = ", ".join(sorted({what for what, _ in self._waiting}))
        given_up = "; older writes were given up" if len(self._waiting) == MOST_WAITING else ""
        trouble = f"{DATABASE_FILE}: {error}; not stored yet: {names}{given_up}"
        if trouble != self.trouble:
            log.error("%s", trouble)
        self.trouble = trouble
