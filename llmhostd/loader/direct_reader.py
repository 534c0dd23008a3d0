"""How is a data file read at the speed of the disk? (ServerlessLLM §4.2.)

Past the page cache (O_DIRECT), by a few threads, each chunk into a chunk of a bounded pool; chunks are handed on in the
file's order while later ones are still being read. Whoever takes one gives it back to the pool.
"""

import errno
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llmhostd.checkpoints.layout import StoredChunk, StoreIndex
from llmhostd.domain.errors import CheckpointError
from llmhostd.loader.checksum import checksum
from llmhostd.loader.chunk_pool import Chunk, ChunkPool
from llmhostd.loader.mapped_reader import damage


@dataclass(frozen=True, slots=True)
class ReadPolicy:
    """How hard the disk is driven."""

    threads: int = 4
    """Threads that read: enough for a fast disk's queue."""
    direct: bool = True
    """Past the page cache where the file system allows it."""
    verify: bool = True
    """Hold every chunk against its checksum."""


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """A chunk of the data file in memory. Give `chunk` back to its pool."""

    begin: int
    chunk: Chunk


class DirectReader:
    """Reads one data file from front to back."""

    def __init__(self, file: Path, index: StoreIndex, pool: ChunkPool, policy: ReadPolicy | None = None) -> None:
        """Raises CheckpointError when the file cannot be opened."""
        self._policy = policy or ReadPolicy()
        self._file, self._pool = file, pool
        self._descriptor, self.direct = _open(file, direct=self._policy.direct)
        """`direct`: False when this file system reads through the page cache only (tmpfs, some network mounts)."""
        self._wanted = tuple(index.chunks())
        self._results: dict[int, ReadChunk | CheckpointError] = {}
        self._arrived = threading.Condition()
        self._next = 0
        self._stopped = False

    def __iter__(self) -> Iterator[ReadChunk]:
        """All chunks in the file's order. Raises CheckpointError at the first that is damaged or cannot be read."""
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self._policy.threads)]
        for thread in threads:
            thread.start()
        try:
            for number in range(len(self._wanted)):
                yield self._take(number)
        finally:
            self._stop(threads)

    def _take(self, number: int) -> ReadChunk:
        with self._arrived:
            self._arrived.wait_for(lambda: number in self._results)
            result = self._results.pop(number)
        if isinstance(result, CheckpointError):
            raise result
        return result

    def _work(self) -> None:
        """Take a chunk first and a place in the file second: whoever waits for memory holds up nobody behind him."""
        while True:
            chunk = self._pool.allocate(unless=lambda: self._stopped)
            if chunk is None:
                return
            with self._arrived:
                number = self._next
                self._next += 1
            if number >= len(self._wanted):
                self._pool.release(chunk)
                return
            result = self._read(self._wanted[number], chunk)
            if isinstance(result, CheckpointError):
                self._pool.release(chunk)
            with self._arrived:
                self._results[number] = result
                self._arrived.notify_all()

    def _read(self, wanted: StoredChunk, chunk: Chunk) -> ReadChunk | CheckpointError:
        size = wanted.end - wanted.begin
        try:
            while chunk.filled < size:
                count = os.preadv(self._descriptor, [chunk.memory[chunk.filled : size]], wanted.begin + chunk.filled)
                if not count:
                    return CheckpointError(f"{self._file}: is truncated at byte {wanted.begin + chunk.filled}")
                chunk.filled += count
        except OSError as error:
            return CheckpointError(f"{self._file}: bytes {wanted.begin} to {wanted.end}: {error.strerror}")
        if self._policy.verify and checksum(chunk.data) != wanted.checksum:
            return CheckpointError(damage(self._file, wanted))
        return ReadChunk(wanted.begin, chunk)

    def _stop(self, threads: list[threading.Thread]) -> None:
        """Let the threads end, and give back what nobody will take."""
        self._stopped = True
        self._pool.wake()
        for thread in threads:
            thread.join()
        for result in self._results.values():
            if isinstance(result, ReadChunk):
                self._pool.release(result.chunk)
        os.close(self._descriptor)


def _open(file: Path, *, direct: bool) -> tuple[int, bool]:
    try:
        if direct:
            try:
                return os.open(file, os.O_RDONLY | os.O_DIRECT), True
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
        return os.open(file, os.O_RDONLY), False
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from error
