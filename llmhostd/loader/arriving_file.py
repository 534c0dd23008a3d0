"""Which chunks of a data file have come over the network, and how does it become whole?

Chunks are written where they belong, each as soon as it was held against its checksum. What is there after a kill is
known by the same checksums, so nothing is noted beside it. The file gets its name when it is whole.
"""

import errno
import os
import shutil
from pathlib import Path

from llmhostd.checkpoints.layout import StoredChunk
from llmhostd.domain.errors import CheckpointError
from llmhostd.loader.checksum import checksum
from llmhostd.loader.store_directory import locked, still_there, sync
from llmhostd.loader.store_index import ARRIVING_FILE, DATA_FILE

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ArrivingFile:
    """A data file that one process fills, by several threads."""

    def __init__(self, store: Path) -> None:
        """Open it, or make it. Raises CheckpointError naming it."""
        self._store, self._file = store, store / ARRIVING_FILE
        try:
            self._descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise CheckpointError(f"{self._file}: cannot be written: {error.strerror}") from error

    def locked(self) -> bool:
        """Whether it is ours to fill; not while another process does."""
        return locked(self._descriptor)

    def still_there(self) -> bool:
        """Whether it is still the file of that name: another process may have made it whole meanwhile."""
        return still_there(self._descriptor, self._file)

    def begin(self, data_bytes: int, spare_bytes: int) -> None:
        """Give it its size, without its bytes. Raises CheckpointError when they have no room on the disk."""
        _check_room(self._store, data_bytes - min(512 * os.fstat(self._descriptor).st_blocks, data_bytes), spare_bytes)
        os.ftruncate(self._descriptor, data_bytes)

    def has(self, chunk: StoredChunk, buffer: memoryview) -> bool:
        """Whether a chunk is there, and right."""
        try:
            if os.lseek(self._descriptor, chunk.begin, os.SEEK_DATA) >= chunk.end:
                return False
        except OSError:
            return False  # a hole up to the end
        view = buffer[: chunk.end - chunk.begin]
        return os.preadv(self._descriptor, [view], chunk.begin) == len(view) and checksum(view) == chunk.checksum

    def put(self, chunk: StoredChunk, data: memoryview) -> None:
        """Write a chunk that is right. Raises CheckpointError."""
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(self._descriptor, data[done:], chunk.begin + done)
        except OSError as error:
            why = "the disk is full" if error.errno in _NO_SPACE else error.strerror
            raise CheckpointError(f"{self._file}: cannot be written: {why}; what came is kept") from error

    def flush(self) -> None:
        """Have on the disk what was put, so that no more than what is on its way waits in memory for that."""
        os.fdatasync(self._descriptor)

    def discard(self) -> None:
        """Remove it: nothing is to come."""
        self._file.unlink()

    def close(self) -> None:
        """Let another process have it."""
        os.close(self._descriptor)

    def finish(self) -> None:
        """Give it its name: all of it is there."""
        os.fsync(self._descriptor)
        self._file.rename(self._store / DATA_FILE)
        sync(self._store)


def _check_room(path: Path, more_bytes: int, spare_bytes: int) -> None:
    """Raise CheckpointError unless so many more bytes fit on a directory's disk."""
    free_bytes = shutil.disk_usage(path).free - spare_bytes
    if more_bytes > free_bytes:
        raise CheckpointError(f"{path}: {more_bytes:,} more bytes are to come, {max(free_bytes, 0):,} may be used here")
