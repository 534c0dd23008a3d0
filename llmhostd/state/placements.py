"""Which models were loaded, and where?

Written now and again while the daemon runs, so that the next run can load them again (`host.comeback`).
"""

from collections.abc import Sequence

import msgspec
from sqlite_utils import Database

from llmhostd.domain.ids import ModelName, NodeId
from llmhostd.domain.words import Word


class Placement(Word):
    """A model that could answer on a node without being loaded first."""

    model: ModelName
    node_id: NodeId
    resident: bool
    """Its weights were packed; otherwise it was warm."""
    used_at: float
    """When it last computed for somebody: Unix seconds."""


class PlacementTable:
    """The table `placements`."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def all(self) -> list[Placement]:
        """Return every placement, last used first."""
        rows = self._db["placements"].rows_where(order_by="used_at desc, model, node_id")
        return [msgspec.convert(row | {"resident": bool(row["resident"])}, Placement) for row in rows]

    def replace(self, placements: Sequence[Placement]) -> None:
        """Forget what was known, and know these, all or nothing."""
        table = self._db["placements"]
        with self._db.atomic():
            table.delete_where()
            table.insert_all(msgspec.structs.asdict(one) for one in placements)
