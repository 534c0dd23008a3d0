"""How did the tables come to be as they are?

Each migration has a name that never changes and runs once, in a transaction with the note that it ran: a crash leaves
either both or neither. A database from a newer llmhostd is refused, not guessed at.
"""

import time
from collections.abc import Callable

from sqlite_utils import Database

from llmhostd.domain.errors import OperatorError

TABLE = "migrations"

Migration = Callable[[Database], None]


def _models(db: Database) -> None:
    db["models"].create(
        {
            "name": str, "path": str, "shape": str, "compute": str, "kv": str, "parameters": int,
            "ttft_s": float, "tpot_s": float, "source": str, "added_at": float,
        },
        pk="name",
        not_null={"path", "shape", "compute", "kv", "parameters", "source", "added_at"},
    )  # fmt: skip


def _profiles(db: Database) -> None:
    db["profiles"].create(
        {"shape_key": str, "hardware_key": str, "profile": str, "measured_at": float},
        pk=("shape_key", "hardware_key"),
        not_null={"profile", "measured_at"},
    )


def _usage(db: Database) -> None:
    counters = ("requests", "refused", "failed", "prompt_tokens", "cached_tokens", "output_tokens")
    db["usage"].create(
        {"day": str, "model": str, **dict.fromkeys(counters, int)},
        pk=("day", "model"),
        not_null=set(counters),
    )


def _flex(db: Database) -> None:
    db["flex_calls"].create(
        {
            "number": int, "id": str, "caller_id": str, "endpoint": str, "body": bytes, "model": str,
            "arrived_at": float, "status": int, "answer": bytes, "ended_at": float,
        },
        pk="number",
        not_null={"id", "caller_id", "endpoint", "body", "model", "arrived_at"},
    )  # fmt: skip
    db["flex_calls"].create_index(["id"], unique=True)
    db["flex_calls"].create_index(["caller_id"])
    db["flex_choices"].create(
        {"call_id": str, "choice": int, "seed": str, "tokens": bytes, "cached_tokens": int, "finish": str},
        pk=("call_id", "choice"),
        not_null={"seed", "tokens", "cached_tokens"},
    )


def _placements(db: Database) -> None:
    db["placements"].create(
        {"model": str, "node_id": str, "resident": int, "used_at": float},
        pk=("model", "node_id"),
        not_null={"resident", "used_at"},
    )


def _starts(db: Database) -> None:
    db["starts"].create(
        {"number": int, "hardware_key": str, "seen": str, "ended_at": float},
        pk="number",
        not_null={"hardware_key", "seen", "ended_at"},
    )


def _adapters(db: Database) -> None:
    db["models"].add_column("adapter", str)


def _set_aside(db: Database) -> None:
    db["set_aside"].create(
        {"kind": str, "name": str, "because": str, "since": float},
        pk=("kind", "name"),
        not_null={"because", "since"},
    )


MIGRATIONS: dict[str, Migration] = {
    "0001_models": _models, "0002_profiles": _profiles, "0003_usage": _usage, "0004_flex": _flex,
    "0005_placements": _placements, "0006_starts": _starts,
    "0007_adapters": _adapters, "0008_set_aside": _set_aside,
}  # fmt: skip


def migrate(db: Database, migrations: dict[str, Migration] = MIGRATIONS) -> list[str]:
    """Apply what is missing, in order; return the names applied. Raises OperatorError for a newer database."""
    db[TABLE].create({"name": str, "applied_at": float}, pk="name", if_not_exists=True)
    applied = {row["name"] for row in db[TABLE].rows}
    unknown = sorted(applied - set(migrations))
    if unknown:
        raise OperatorError(f"state.db was written by a newer llmhostd (it knows {unknown[0]}); upgrade, or restore")
    missing = [name for name in migrations if name not in applied]
    for name in missing:
        with db.atomic():
            migrations[name](db)
            db[TABLE].insert({"name": name, "applied_at": time.time()})
    return missing
