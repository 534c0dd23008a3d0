"""Which best-effort calls were accepted, how far are they, and what became of them?

A call is written before its caller may rely on it, and forgotten once its answer has left. What is here when a daemon
starts was cut off; it is taken up again in order of arrival, and its answer is kept for whoever asks for it by its id.
"""

import array
import time
from collections.abc import Iterable, Mapping
from typing import Any

from sqlite_utils import Database

from llmhostd.domain.ids import ModelName
from llmhostd.domain.request import FinishReason
from llmhostd.domain.words import Word
from llmhostd.state.database import durable
from llmhostd.state.policy import FlexPolicy

_CALLS, _CHOICES = "flex_calls", "flex_choices"
_C_INT = "i"
"""How token ids are stored, in the machine's byte order: the file does not travel."""
_TOO_MANY = """
select id from flex_calls where ended_at < ? union
select * from (select id from flex_calls where ended_at not null order by ended_at desc, number desc limit -1 offset ?)
"""


class ChoiceProgress(Word):
    """One of a call's choices: what it was drawn with, and how far it got."""

    seed: int
    tokens: tuple[int, ...] = ()
    """Output tokens so far."""
    cached_tokens: int = 0
    finish: FinishReason | None = None


class FlexCall(Word):
    """One call."""

    id: str
    """Of the completion, as its answer and each chunk of it say."""
    caller_id: str
    """The caller's own `X-Request-Id`; empty: none."""
    endpoint: str
    body: bytes
    """As it was accepted."""
    model: ModelName
    arrived_at: float
    """Unix seconds."""
    choices: tuple[ChoiceProgress, ...]
    status: int | None = None
    """HTTP status of the answer; None: it is not there yet."""
    answer: bytes = b""
    """JSON."""


class FlexTable:
    """The tables `flex_calls` and `flex_choices`."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def put(self, call: FlexCall) -> None:
        """Add a call behind all others; on the disk when this returns."""
        row = {name: getattr(call, name) for name in call.__struct_fields__ if name != "choices"}
        with durable(self._db), self._db.atomic():
            self._db[_CALLS].insert(row)
            self._save(call.id, enumerate(call.choices))

    def save(self, progress: Mapping[tuple[str, int], ChoiceProgress]) -> None:
        """Replace what was known of choices, by (call, index), all or nothing; not of calls that were forgotten."""
        with self._db.atomic():
            for (call_id, index), choice in progress.items():
                if self._db[_CALLS].count_where("id = ?", [call_id]):
                    self._save(call_id, [(index, choice)])

    def end(self, call_id: str, status: int, answer: bytes, policy: FlexPolicy) -> None:
        """Keep an answer, and forget the oldest ones beyond the policy."""
        now = time.time()
        with self._db.atomic():
            self._db.execute(
                f"update {_CALLS} set status = ?, answer = ?, ended_at = ? where id = ?",  # noqa: S608
                (status, answer, now, call_id),
            )
            old = self._db.query(_TOO_MANY, [now - policy.answers_keep_s, policy.answers_kept])
            for one in list(old):
                self._forget(one["id"])

    def remove(self, call_id: str) -> bool:
        """Forget a call. Return whether it was there."""
        with self._db.atomic():
            return self._forget(call_id)

    def waiting(self) -> list[str]:
        """Return the ids of calls without an answer, in order of arrival."""
        rows = self._db[_CALLS].rows_where("status is null", select="id", order_by="number")
        return [row["id"] for row in rows]

    def find(self, call_id: str) -> FlexCall | None:
        """Return the call of that id, or else the newest with that id of its caller's."""
        for column in ("id", "caller_id") if call_id else ():
            for row in self._db[_CALLS].rows_where(f"{column} = ?", [call_id], order_by="number desc", limit=1):
                return self._call(row)
        return None

    def _save(self, call_id: str, choices: Iterable[tuple[int, ChoiceProgress]]) -> None:
        rows = [
            {
                "call_id": call_id, "choice": index, "seed": str(one.seed), "cached_tokens": one.cached_tokens,
                "tokens": array.array(_C_INT, one.tokens).tobytes(), "finish": one.finish,
            }
            for index, one in choices
        ]  # fmt: skip
        self._db[_CHOICES].insert_all(rows, replace=True)

    def _forget(self, call_id: str) -> bool:
        known = bool(self._db[_CALLS].count_where("id = ?", [call_id]))
        self._db[_CALLS].delete_where("id = ?", [call_id])
        self._db[_CHOICES].delete_where("call_id = ?", [call_id])
        return known

    def _call(self, row: Mapping[str, Any]) -> FlexCall:
        choices = self._db[_CHOICES].rows_where("call_id = ?", [row["id"]], order_by="choice")
        fields = {name: row[name] for name in FlexCall.__struct_fields__ if name != "choices"}
        return FlexCall(**fields, choices=tuple(map(_choice, choices)))


def _choice(row: Mapping[str, Any]) -> ChoiceProgress:
    tokens = array.array(_C_INT, row["tokens"])
    finish = None if row["finish"] is None else FinishReason(row["finish"])
    return ChoiceProgress(
        seed=int(row["seed"]), tokens=tuple(tokens), cached_tokens=row["cached_tokens"], finish=finish
    )
