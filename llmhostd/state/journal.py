"""What did the host mind hear and decide, when, and made with what?

One SQLite file beside `state.db`. Each start of the daemon begins a history of steps: an event, its time, and what was
decided. From its first step on, a history can be run through a fresh mind again; from its middle it cannot. So whole
old histories are dropped first when space is short, and only then the beginning of the running one, which says so.

No content of any request is kept: token ids become as many zeros, log-probabilities nothing.
"""

import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from llmhostd.domain.actions import HostAction
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.events import HostEvent
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.reports import IterationReported, RowReport
from llmhostd.domain.words import Word
from llmhostd.host.policies import HostPolicies

JOURNAL_FILE = "journal.db"
FORMAT = 1
"""`pragma user_version` of the file."""
_COMPRESSION = 1
"""Events are so alike that the fastest level makes them seven times smaller."""
_LEAST_TRIM = 8
"""An eighth of the journal goes at once, so that not every write trims."""

_TABLES = """
create table starts (
    number integer primary key autoincrement, at_unix_s real not null, version text not null, mind text not null,
    made_with blob not null, first_kept integer not null default 1
);
create table batches (
    start integer not null, first_sequence integer not null, steps integer not null, blob blob not null,
    primary key (start, first_sequence)
);
"""

T = TypeVar("T")

_SIZES = "select start, sum(length(blob)) from batches group by start"


@dataclass(frozen=True, slots=True)
class JournalPolicy:
    """What is remembered of events and decisions, for `llmhostd replay`. Lengths only: no prompt, no answer."""

    max_mib: int = 256
    """The journal's largest size; whole earlier runs of the daemon are forgotten first. 0: nothing is recorded."""
    flush_s: float = 1.0
    """It is written this often; a crash loses no more."""


class MadeWith(Word):
    """What a mind was made with, and thus all that a fresh one needs."""

    nodes: tuple[NodeSpec, ...]
    policies: HostPolicies


class Start(Word):
    """One start of the daemon."""

    number: int
    at_unix_s: float
    version: str
    """Of llmhostd."""
    mind: str
    """Class of the mind."""
    made_with: MadeWith
    first_kept: int
    """Sequence number of the first step that was not dropped: 1 while the history is whole."""


class Step(Word):
    """The mind heard an event."""

    now: float
    """What the mind was told as the time: seconds on the monotonic clock."""
    event: HostEvent
    actions: tuple[HostAction, ...] = ()
    error: str = ""
    """What it raised instead of deciding."""


_made_with = msgspec.msgpack.Decoder(MadeWith)
_steps = msgspec.msgpack.Decoder(list[Step])


class Journal:
    """The file. For one thread at a time."""

    def __init__(self, directory: Path) -> None:
        """Open `journal.db` in a directory that exists, or make it. Raises OperatorError naming the file."""
        self.file = directory / JOURNAL_FILE
        try:
            self._db = sqlite3.connect(self.file, timeout=10.0, check_same_thread=False, isolation_level=None)
            self._prepare()
            self._sizes: dict[int, int] = dict(self._db.execute(_SIZES))
        except sqlite3.Error as error:
            raise OperatorError(f"{self.file}: {error}") from error

    def begin(self, *, at_unix_s: float, version: str, mind: str, made_with: MadeWith) -> int:
        """Begin a history; returns its number."""
        row = (at_unix_s, version, mind, msgspec.msgpack.encode(made_with))
        began = self._db.execute("insert into starts (at_unix_s, version, mind, made_with) values (?, ?, ?, ?)", row)
        return int(began.lastrowid or 0)

    def append(self, start: int, first_sequence: int, steps: Sequence[Step], max_bytes: int) -> None:
        """Add consecutive steps to a history, then forget what is too much. All or nothing. Raises sqlite3.Error."""
        blob = zlib.compress(msgspec.msgpack.encode([_without_contents(step) for step in steps]), _COMPRESSION)
        self._db.execute("begin immediate")
        with self._db:
            self._db.execute("insert into batches values (?, ?, ?, ?)", (start, first_sequence, len(steps), blob))
            sizes = self._trimmed(start, self._sizes | {start: self._sizes.get(start, 0) + len(blob)}, max_bytes)
        self._sizes = sizes
        self._db.execute("pragma incremental_vacuum")

    def starts(self) -> list[Start]:
        """Every start that is remembered, oldest first. Raises OperatorError if another version wrote it."""
        rows = self._db.execute("select number, at_unix_s, version, mind, made_with, first_kept from starts")
        return [
            Start(
                number=number, at_unix_s=at_unix_s, version=version, mind=mind, first_kept=first_kept,
                made_with=_decode(made_with, _made_with, f"{self.file}: start {number}, of llmhostd {version}"),
            )
            for number, at_unix_s, version, mind, made_with, first_kept in rows
        ]  # fmt: skip

    def steps(self, start: Start) -> Iterator[Step]:
        """Yield a history's steps in order, from `first_kept` on. Raises OperatorError for what is no step of ours."""
        query = "select first_sequence from batches where start = ? order by first_sequence"
        for (first_sequence,) in self._db.execute(query, (start.number,)).fetchall():
            yield from self._batch(start, first_sequence)

    def extent(self, start: Start) -> tuple[int, float]:
        """How many steps of a history are there, and how many seconds from the first of them to the last?"""
        query = "select sum(steps), min(first_sequence), max(first_sequence) from batches where start = ?"
        steps, first, last = self._db.execute(query, (start.number,)).fetchone()
        if not steps:
            return 0, 0.0
        first_batch, last_batch = (self._batch(start, sequence) for sequence in (first, last))
        return steps, last_batch[-1].now - first_batch[0].now

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _prepare(self) -> None:
        found = int(self._db.execute("pragma user_version").fetchone()[0])
        if found == 0:
            self._db.execute("pragma auto_vacuum = incremental")
        self._db.execute("pragma journal_mode = wal")
        self._db.execute("pragma synchronous = normal")
        if found == 0:
            self._db.executescript(f"begin; {_TABLES} pragma user_version = {FORMAT}; commit;")
        elif found != FORMAT:
            raise OperatorError(
                f"{self.file}: written by another llmhostd (format {found}, not {FORMAT}); move it away"
            )

    def _batch(self, start: Start, first_sequence: int) -> list[Step]:
        where = f"{self.file}: start {start.number}, of llmhostd {start.version}, step {first_sequence} and on"
        query = "select blob from batches where start = ? and first_sequence = ?"
        row = self._db.execute(query, (start.number, first_sequence)).fetchone()
        if row is None:
            raise OperatorError(f"{where}: dropped meanwhile, the journal is full")
        try:
            return _decode(zlib.decompress(row[0]), _steps, where)
        except zlib.error as error:
            raise OperatorError(f"{where}: is damaged: {error}") from error

    def _trimmed(self, running: int, sizes: dict[int, int], max_bytes: int) -> dict[int, int]:
        """Forget whole earlier histories, oldest first; then the beginning of the running one. Returns what is left."""
        surplus = sum(sizes.values()) - max_bytes
        left = dict(sizes)
        for start in sorted(sizes):
            if surplus <= 0 or start == running:
                break
            self._db.execute("delete from starts where number = ?", (start,))
            self._db.execute("delete from batches where start = ?", (start,))
            surplus -= left.pop(start)
        if surplus > 0:
            left[running] -= self._trim_running(running, surplus + max_bytes // _LEAST_TRIM)
        return left

    def _trim_running(self, start: int, surplus: int) -> int:
        first_kept, dropped = 1, 0
        query = "select first_sequence, steps, length(blob) from batches where start = ? order by first_sequence"
        for first_sequence, steps, size in self._db.execute(query, (start,)):
            if dropped >= surplus:
                break
            dropped += size
            first_kept = first_sequence + steps
        self._db.execute("delete from batches where start = ? and first_sequence < ?", (start, first_kept))
        self._db.execute("update starts set first_kept = ? where number = ?", (first_kept, start))
        return dropped


def _without_contents(step: Step) -> Step:
    """Count tokens instead of keeping them."""
    event = step.event
    if not isinstance(event, IterationReported):
        return step
    rows = tuple(
        RowReport(
            request_id=row.request_id,
            prefilled=row.prefilled,
            cached=row.cached,
            tokens=(0,) * len(row.tokens),
            finish=row.finish,
        )
        for row in event.rows
    )
    return msgspec.structs.replace(step, event=msgspec.structs.replace(event, rows=rows))


def _decode(blob: bytes, decoder: "msgspec.msgpack.Decoder[T]", where: str) -> T:
    try:
        return decoder.decode(blob)
    except msgspec.MsgspecError as error:
        raise OperatorError(f"{where}: this llmhostd cannot read it: {error}") from error
