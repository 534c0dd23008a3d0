"""How much was each model used, day by day?

Counters gather in memory and are added to the table in one transaction per flush: a busy daemon writes as often as an
idle one.
"""

import datetime
from collections import defaultdict

import msgspec
from sqlite_utils import Database

from llmhostd.domain.errors import CallerError
from llmhostd.domain.ids import ModelName
from llmhostd.domain.snapshot import UsageRow
from llmhostd.domain.words import Word

_ADD = """
insert into usage (day, model, requests, refused, failed, prompt_tokens, cached_tokens, output_tokens)
values (?, ?, ?, ?, ?, ?, ?, ?)
on conflict (day, model) do update set
    requests = requests + excluded.requests, refused = refused + excluded.refused, failed = failed + excluded.failed,
    prompt_tokens = prompt_tokens + excluded.prompt_tokens, cached_tokens = cached_tokens + excluded.cached_tokens,
    output_tokens = output_tokens + excluded.output_tokens
"""


class Usage(Word):
    """Counts of one model on one day (UTC), or of one request."""

    requests: int = 0
    refused: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of `prompt_tokens`: not computed, because an earlier request had the same prefix."""
    output_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


class UsageBook:
    """Counts in memory until `take`, which another thread may then `write`."""

    def __init__(self) -> None:
        self._pending: dict[tuple[str, ModelName], Usage] = defaultdict(Usage)

    def count(self, model: ModelName, usage: Usage) -> None:
        """Add to today's counters of a model."""
        day = datetime.datetime.now(datetime.UTC).date().isoformat()
        self._pending[day, model] += usage

    def take(self) -> dict[tuple[str, ModelName], Usage]:
        """Return what gathered since the last call, and begin anew."""
        taken, self._pending = dict(self._pending), defaultdict(Usage)
        return taken


class UsageTable:
    """The table `usage`."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def add(self, counted: dict[tuple[str, ModelName], Usage]) -> None:
        """Add counters to what is stored, all or nothing."""
        with self._db.atomic():
            for (day, model), usage in counted.items():
                self._db.execute(_ADD, (day, model, *(getattr(usage, name) for name in usage.__struct_fields__)))

    def rows(self, *, per_day: bool, since: str) -> list[UsageRow]:
        """Return the counters since a day (UTC, `2026-01-31`; empty: ever), by day if wanted, then by model.

        Raises CallerError for a day that the calendar does not have.
        """
        _check_day(since)
        names = Usage.__struct_fields__
        sums = ", ".join(f"sum({name}) as {name}" for name in names)
        day = "day" if per_day else "''"
        sql = f"select {day} as day, model, {sums} from usage where day >= ? group by 1, 2 order by 1, 2"  # noqa: S608
        return [msgspec.convert(row, UsageRow) for row in self._db.query(sql, [since])]

    def all(self) -> dict[tuple[str, ModelName], Usage]:
        """Return every counter, oldest day first."""
        rows = self._db["usage"].rows_where(order_by="day, model")
        names = Usage.__struct_fields__
        return {(row["day"], ModelName(row["model"])): Usage(**{name: row[name] for name in names}) for row in rows}


def _check_day(day: str) -> None:
    try:
        if day:
            datetime.date.fromisoformat(day)
    except ValueError as error:
        raise CallerError(f"since: is {day[:40]!r}; expected a day such as 2026-01-31", field="since") from error
