"""Which models are quarantined and which nodes are drained, until somebody says otherwise?"""

import time
from enum import StrEnum

import msgspec
from sqlite_utils import Database

from llmhostd.domain.ids import ModelName, NodeId
from llmhostd.domain.words import Word
from llmhostd.state.database import durable


class Kind(StrEnum):
    """What is set aside."""

    QUARANTINED_MODEL = "model"
    DRAINED_NODE = "node"


class SetAside(Word):
    """A model or a node that nothing new goes to."""

    kind: Kind
    name: str
    because: str
    since: float
    """Unix seconds."""


class SetAsideTable:
    """The table `set_aside`. What is written is on the disk when a call returns, or did not happen: sqlite3.Error."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def all(self) -> list[SetAside]:
        """Return everything, the longest first."""
        rows = self._db["set_aside"].rows_where(order_by="since, kind, name")
        return [msgspec.convert(row, SetAside) for row in rows]

    def quarantine(self, model: ModelName, because: str) -> None:
        """Know that a model took its workers down."""
        self._put(Kind.QUARANTINED_MODEL, model, because)

    def release(self, model: ModelName) -> None:
        """Forget that, if it is known."""
        self._drop(Kind.QUARANTINED_MODEL, model)

    def drain(self, node_id: NodeId) -> None:
        """Know that an operator wants a node empty."""
        self._put(Kind.DRAINED_NODE, node_id, "an operator asked for it")

    def end_drain(self, node_id: NodeId) -> None:
        """Forget that, if it is known."""
        self._drop(Kind.DRAINED_NODE, node_id)

    def _put(self, kind: Kind, name: str, because: str) -> None:
        one = SetAside(kind=kind, name=name, because=because, since=time.time())
        with durable(self._db), self._db.atomic():
            self._db["set_aside"].upsert(msgspec.structs.asdict(one), pk=("kind", "name"))

    def _drop(self, kind: Kind, name: str) -> None:
        with durable(self._db), self._db.atomic():
            self._db["set_aside"].delete_where("kind = ? and name = ?", [kind, name])
