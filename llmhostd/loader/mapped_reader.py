"""How do a mapped store's bytes come into memory, in order and checked, while somebody already works on the first?

The page cache is the host-memory tier of a CPU node: shared by all workers, given up by the system when memory is
short, and used in place. A thread asks the system for one chunk after another, checks it, and lets those go on who wait
for it. One thread: it reads as fast as the disk. With a second that takes 7 % less to 20 % more (the system reads ahead
for one), from the page cache as long, and a third slows it (in turns with `dd`; tests/bench/test_loading.py). While
others compute, it pauses after every chunk.
"""

import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np

from llmhostd.checkpoints.layout import StoredChunk, StoreIndex
from llmhostd.domain.errors import CheckpointError
from llmhostd.loader.checksum import checksum
from llmhostd.loader.page_cache import populate

_SECTOR = 512
"""Unit in which the kernel counts what a thread had read from block devices, whatever they are."""


_PAUSE = 3.0
"""While others compute, it pauses for so many times what a chunk took of its core: so it has a quarter of one.

A 156M model that decodes on both cores beside a load of 1.1B from the page cache was 1.8 times slower (median
iteration) without a pause, 1.4 at 1, 1.3 at 3, 1.2 at 6; the load took 0.07, 0.24, 0.38 and 0.55 s. At a nice level of
19 instead it is 1.2, and 0.44 s, but a neighbour that never rests would starve it.
"""


class Arriving(Protocol):
    """Weights that are still coming over the network into the file that is mapped."""

    def wait(self, end: int) -> None:
        """Wait until everything before an offset is in the file. Raises CheckpointError when it will not come."""
        ...


class MappedReader:
    """Reads one mapped data file from front to back, once."""

    def __init__(self, file: Path, view: memoryview, index: StoreIndex, arriving: Arriving | None = None) -> None:
        self._file = file
        self._arriving = arriving
        self._view = view
        self._index = index
        self._read_to = 0
        self._damage: CheckpointError | None = None
        self._progress = threading.Condition()
        self._thread: threading.Thread | None = None
        self._crowded: Callable[[], bool] | None = None
        self.read_s = 0.0
        """Seconds spent in reading and checking so far."""
        self.waited_s = 0.0
        """Seconds for which somebody waited for it so far."""
        self.disk_bytes = 0
        """What came from the disk so far; the rest of what was read lay in the page cache."""

    def start(self, crowded: Callable[[], bool] | None = None) -> None:
        """Begin, unless it has begun. `crowded`: whether others compute on these cores now."""
        if self._thread is None:
            self._crowded = crowded
            self._thread = threading.Thread(target=self._read, name="weights", daemon=True)
            self._thread.start()

    def wait(self, end: int) -> None:
        """Wait until everything before the offset `end` is in memory and checked.

        Raises CheckpointError naming the file, the block and the chunk that is damaged.
        """
        self.start()
        if self._read_to >= end:
            return
        began_s = time.monotonic()
        with self._progress:
            self._progress.wait_for(lambda: self._read_to >= end or self._damage)
            if self._damage and self._read_to < end:
                raise self._damage
        self.waited_s += time.monotonic() - began_s

    @property
    def read_bytes(self) -> int:
        """What is in memory and checked."""
        return self._read_to

    def _read(self) -> None:
        began_s, before = time.monotonic(), resource.getrusage(resource.RUSAGE_THREAD).ru_inblock
        bytes_ = np.frombuffer(self._view, np.uint8)
        for chunk in self._index.chunks():
            if self._arriving is not None:
                try:
                    self._arriving.wait(chunk.end)
                except CheckpointError as error:
                    self._fail(error)
                    return
            busy_s = time.thread_time()
            here = bytes_[chunk.begin : chunk.end]
            if not populate(here.ctypes.data, here.nbytes):
                self._fail(CheckpointError(_unreadable(self._file, chunk.begin, chunk.end)))
                return
            if checksum(here.data) != chunk.checksum:
                self._fail(CheckpointError(damage(self._file, chunk)))
                return
            self.read_s = time.monotonic() - began_s
            self.disk_bytes = _SECTOR * (resource.getrusage(resource.RUSAGE_THREAD).ru_inblock - before)
            with self._progress:
                self._read_to = chunk.end
                self._progress.notify_all()
            if self._crowded is not None and self._crowded():
                time.sleep(_PAUSE * (time.thread_time() - busy_s))

    def _fail(self, error: CheckpointError) -> None:
        with self._progress:
            self._damage = error
            self._progress.notify_all()


def _unreadable(file: Path, begin: int, end: int) -> str:
    return f"{file}: bytes {begin} to {end} cannot be read: the file was cut short meanwhile, or its disk fails"


def damage(file: Path, chunk: StoredChunk) -> str:
    """What a person is told of a chunk whose bytes are not those that were written."""
    return (
        f"{file}: block `{chunk.block}`, chunk {chunk.place} (bytes {chunk.begin} to {chunk.end}) is damaged: its"
        " checksum differs; remove the model and add it again"
    )
