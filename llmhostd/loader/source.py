"""How is a checkpoint read that is to be converted, while somebody may be writing to it?

By offset, not through a map: a file that shrinks meanwhile is an error, not a signal that ends the process. Whoever
has read all of it asks whether it is still what it was.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import xxhash

from llmhostd.checkpoints.layout import SourceFile
from llmhostd.domain.errors import CheckpointError
from llmhostd.loader.header import StoredTensor
from llmhostd.loader.plain_file import FileState, readable, state_of
from llmhostd.loader.safetensors import NUMPY_TYPES, describe

_PIECE_BYTES = 8 << 20

Progress = Callable[[int, int], None]
"""Hears (bytes so far, bytes in all)."""


class Source:
    """The open files of a checkpoint. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        """Describe and open it. Raises CheckpointError naming the file and what is wrong with it."""
        self.description = describe(path)
        self.path = path
        self._files = sorted({one.file for one in self.description.tensors.values()})
        self._open: dict[Path, int] = {}
        self._before: dict[Path, FileState] = {}

    def __enter__(self) -> Self:
        for file in self._files:
            with readable(file):
                self._open[file] = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
                self._before[file] = state_of(os.fstat(self._open[file]))
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def __contains__(self, name: str) -> bool:
        return name in self.description.tensors

    def dtype(self, name: str) -> str:
        """Return the stored type in safetensors' words."""
        return self._place(name).dtype

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape."""
        return self._place(name).shape

    def rows(self, name: str, rows: slice) -> npt.NDArray[Any]:
        """Read rows (along the first axis, step 1) of a tensor. BF16 comes as uint16. Raises CheckpointError."""
        place = self._place(name)
        first, end, _ = rows.indices(place.shape[0])
        values = np.empty((end - first, *place.shape[1:]), NUMPY_TYPES[place.dtype])
        row_bytes = (place.end - place.begin) // max(place.shape[0], 1)
        self._read(place.file, place.begin + first * row_bytes, values.reshape(-1).view(np.uint8).data)
        return values

    def files(self, progress: Progress | None = None) -> tuple[SourceFile, ...]:
        """Read every file and sum it up; `progress` hears of the bytes. Raises CheckpointError."""
        total, done, found = sum(state.size_bytes for state in self._before.values()), 0, []
        buffer = memoryview(bytearray(_PIECE_BYTES))
        for file in self._files:
            size, digest = self._before[file].size_bytes, xxhash.xxh3_128()
            for begin in range(0, size, _PIECE_BYTES):
                piece = buffer[: min(_PIECE_BYTES, size - begin)]
                self._read(file, begin, piece)
                digest.update(piece)
                done += len(piece)
                if progress:
                    progress(done, total)
            found.append(SourceFile(name=file.name, size_bytes=size, checksum=digest.hexdigest()))
        return tuple(found)

    def check_unchanged(self) -> None:
        """Raise CheckpointError unless every file is the one that was opened, as it was then."""
        for file in self._files:
            with readable(file):
                if state_of(file.stat()) != self._before[file]:
                    raise CheckpointError(f"{file}: changed while it was copied; run again once it is complete")

    def _read(self, file: Path, begin: int, into: memoryview) -> None:
        done = 0
        while done < len(into):
            with readable(file):
                count = os.preadv(self._open[file], [into[done:]], begin + done)
            if not count:
                raise CheckpointError(f"{file}: was cut short while it was copied; run again once it is complete")
            done += count

    def _place(self, name: str) -> StoredTensor:
        place = self.description.tensors.get(name)
        if place is None:
            raise CheckpointError(f"{self.path}: tensor `{name}` is missing")
        return place
