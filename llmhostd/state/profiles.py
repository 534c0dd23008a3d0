"""What was measured of each (model shape, hardware) pair?"""

import time

import msgspec
from sqlite_utils import Database

from llmhostd.domain.profile import Profile


class ProfileTable:
    """The table `profiles`: JSON, so that a person and any later version can read it."""

    def __init__(self, db: Database) -> None:
        self._table = db["profiles"]

    def all(self) -> list[Profile]:
        """Return every profile, of this hardware or another."""
        rows = self._table.rows_where(order_by="shape_key, hardware_key")
        return [msgspec.json.decode(row["profile"], type=Profile) for row in rows]

    def put(self, profile: Profile) -> None:
        """Add a profile, or replace the older one of that pair."""
        row = {
            "shape_key": profile.shape_key,
            "hardware_key": profile.hardware_key,
            "profile": msgspec.json.encode(profile).decode(),
            "measured_at": time.time(),
        }
        self._table.insert(row, replace=True)
