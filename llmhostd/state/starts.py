"""What was seen of the latest starts on this box?"""

import time
from collections.abc import Collection

import msgspec
from sqlite_utils import Database

from llmhostd.domain.ids import HardwareKey
from llmhostd.domain.start import StartSeen

KEPT = 1000
"""Starts that are remembered; more than any estimate looks back at."""


class StartTable:
    """The table `starts`: JSON, so that a person and any later version can read it."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def latest(self, hardware: Collection[HardwareKey]) -> list[StartSeen]:
        """Return what is remembered of starts on some kinds of hardware, the oldest first."""
        rows = self._db["starts"].rows_where(order_by="number")
        return [msgspec.json.decode(row["seen"], type=StartSeen) for row in rows if row["hardware_key"] in hardware]

    def put(self, seen: StartSeen) -> None:
        """Add a start; the oldest are forgotten."""
        table = self._db["starts"]
        row = {"hardware_key": seen.hardware_key, "seen": msgspec.json.encode(seen).decode(), "ended_at": time.time()}
        with self._db.atomic():
            table.insert(row)
            table.delete_where("number <= (select max(number) from starts) - ?", [KEPT])
