"""How did the last run of the daemon end, and how many people did it leave without an answer?

One mapped page beside the database. A running daemon writes to it at the price of a copy in memory; the kernel keeps
what was written however the process ends, and brings it to the disk within half a minute: a power cut takes no more.
"""

import mmap
import os
import struct
import time
from pathlib import Path

from llmhostd.domain.errors import OperatorError
from llmhostd.domain.words import Word

FILE = "last-run"
SHORT_S = 60.0
"""A run that ends by itself within this time counts as short."""

_LAYOUT = struct.Struct("<8s36sxxxxddIIB")
_MAGIC = b"llmhrun1"
_PEOPLE_AT = struct.calcsize("<8s36sxxxxdd")
_SEEN_AT = struct.calcsize("<8s36sxxxxd")
_ENDED_AT = struct.calcsize("<8s36sxxxxddII")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class LastRun(Word):
    """What is known of a run that is over."""

    boot_id: str
    """Of the machine's run that it was part of."""
    began_at: float
    """Unix seconds."""
    seen_at: float
    """When it was last known to run; Unix seconds."""
    people: int
    """Latency-sensitive requests that had no whole answer yet when it ended."""
    short_runs: int
    """How many runs in a row, before it, ended by themselves within `SHORT_S`."""
    stopped: bool
    """It was told to end, and did."""

    @property
    def short(self) -> bool:
        """Whether it ended by itself as soon as it began."""
        return not self.stopped and self.seen_at - self.began_at < SHORT_S

    @property
    def machine_went_down(self) -> bool:
        """Whether the machine was started since."""
        return self.boot_id != boot_id()


class RunNote:
    """The page of the run that is. Until `begin`, the file says what the last run left."""

    def __init__(self, directory: Path) -> None:
        """Open or make the file. Raises OperatorError naming it."""
        self.file = directory / FILE
        self._over = False
        try:
            self._descriptor = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self.last = _read(os.pread(self._descriptor, _LAYOUT.size, 0))
            """None: there was none, or it cannot be read any more."""
            os.posix_fallocate(self._descriptor, 0, mmap.PAGESIZE)  # a page that finds no room later is a SIGBUS
            self._page = mmap.mmap(self._descriptor, mmap.PAGESIZE)
        except OSError as error:
            raise OperatorError(f"{self.file}: {error.strerror}") from error

    def begin(self) -> None:
        """Let the file be about this run from now on."""
        now, last = time.time(), self.last
        short_runs = last.short_runs + 1 if last and last.short else 0
        _LAYOUT.pack_into(self._page, 0, _MAGIC, boot_id().encode(), now, now, 0, short_runs, 0)

    def people(self, count: int) -> None:
        """Note how many people are served now; nothing once the run is over."""
        if self._over:
            return
        struct.pack_into("<I", self._page, _PEOPLE_AT, count)

    def alive(self) -> None:
        """Note that the daemon still runs."""
        struct.pack_into("<d", self._page, _SEEN_AT, time.time())

    def stopped(self) -> None:
        """Note that the daemon ends because it was told to: whoever is served now is left without an answer."""
        self._over = True
        self.alive()
        struct.pack_into("<B", self._page, _ENDED_AT, 1)

    def close(self) -> None:
        """Let go of the file."""
        self._page.close()
        os.close(self._descriptor)


def last_run(directory: Path) -> LastRun | None:
    """Read what the last run left, or the one that is, changing nothing; None if there is nothing that can be read."""
    try:
        with (directory / FILE).open("rb") as file:
            return _read(file.read(_LAYOUT.size))
    except OSError:
        return None


def boot_id() -> str:
    """Name the machine's run; empty where the kernel does not say."""
    try:
        return _BOOT_ID.read_text().strip()[:36]
    except OSError:
        return ""


def _read(content: bytes) -> LastRun | None:
    """None for what no run wrote whole: a new file, or one that a power cut left empty."""
    if len(content) < _LAYOUT.size:
        return None
    magic, boot, began_at, seen_at, people, short_runs, stopped = _LAYOUT.unpack(content)
    if magic != _MAGIC:
        return None
    return LastRun(
        boot_id=boot.rstrip(b"\0").decode(errors="replace"), began_at=began_at, seen_at=seen_at, people=people,
        short_runs=short_runs, stopped=stopped == 1,
    )  # fmt: skip
