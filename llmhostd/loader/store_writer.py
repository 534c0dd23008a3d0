"""How does a store appear whole or not at all? (ServerlessLLM §4.1.)

Blocks stream out one after another; after each, what is done is noted durably beside the data. The directory gets its
name only when everything in it is on the disk. If the process is killed, the next one takes up where that one stopped,
after it has read again what was written. A disk that is full leaves nothing behind.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from llmhostd.checkpoints.layout import CHUNK_BYTES, FORMAT, Block, SourceFile, StoreIndex, WantedTensor, lay_out
from llmhostd.domain.errors import OperatorError
from llmhostd.loader.checksum import checksum
from llmhostd.loader.plain_file import content
from llmhostd.loader.source import Progress
from llmhostd.loader.store_directory import making
from llmhostd.loader.store_index import DATA_FILE, INDEX_FILE

Values = Mapping[str, Callable[[], Iterator[npt.NDArray[Any]]]]
"""By tensor: yields C-contiguous pieces that concatenate to the whole, as they are stored."""
MOST_COMPANION_BYTES = 256 << 20
"""The largest file beside the weights."""
_NOTE = "unfinished.json"


def write_store(
    destination: Path,
    wanted: Sequence[WantedTensor],
    values: Values,
    source: tuple[SourceFile, ...],
    *,
    companions: Callable[[Path], None],
    progress: Progress | None = None,
) -> None:
    """Write `wanted` (in the order of computation) to the new directory `destination`.

    `companions` puts the other files (config, tokenizer) into the directory that it is given. Raises OperatorError when
    the destination exists, is being made by somebody else, or cannot be written.
    """
    with making(destination) as partial:
        index = _fill(partial, lay_out(wanted), values, source, progress)
        companions(partial)
        (partial / _NOTE).unlink()
        beside = companion_files(partial)
        _note(partial / INDEX_FILE, msgspec.structs.replace(index, companions=beside))


def _fill(
    partial: Path, blocks: tuple[Block, ...], values: Values, source: tuple[SourceFile, ...], progress: Progress | None
) -> StoreIndex:
    """Write the data file, taking up what a killed process left; returns its index."""
    total = blocks[-1].end if blocks else 0
    done = _taken_up(partial, blocks, source)
    for left in partial.iterdir():
        if not done or left.name not in (DATA_FILE, _NOTE):
            left.unlink()  # of something else that was to have this name, or as its source was before
    at = done[-1].end if done else 0
    _refuse_if_too_large(partial, total - at)

    def heard(at: int) -> None:
        if progress:
            progress(at, total)

    with (partial / DATA_FILE).open("r+b" if done else "wb") as file:
        file.truncate(at)
        file.seek(at)
        for block in blocks[len(done) :]:
            done.append(_write_block(file, block, values, heard))
            file.flush()
            os.fsync(file.fileno())
            _note(partial / _NOTE, _index(tuple(done), source))
    return _index(tuple(done), source)


def companion_files(store: Path) -> tuple[SourceFile, ...]:
    """Sum up what lies in a store's directory beside the weights and what tells of them. Raises CheckpointError."""
    found = []
    for file in sorted(store.iterdir()):
        if file.is_file() and not file.name.startswith((DATA_FILE, ".")):
            bytes_ = content(file, MOST_COMPANION_BYTES)
            found.append(SourceFile(name=file.name, size_bytes=len(bytes_), checksum=checksum(bytes_)))
    return tuple(found)


def _index(blocks: tuple[Block, ...], source: tuple[SourceFile, ...]) -> StoreIndex:
    data_bytes = blocks[-1].end if blocks else 0
    return StoreIndex(format=FORMAT, chunk_bytes=CHUNK_BYTES, data_bytes=data_bytes, blocks=blocks, source=source)


def _write_block(file: BinaryIO, block: Block, values: Values, wrote: Callable[[int], None]) -> Block:
    out = _Chunks(file)
    for tensor in block.tensors:
        out.write(bytes(tensor.begin - file.tell()))
        for piece in values[tensor.name]():
            out.write(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
            wrote(file.tell())
        if file.tell() != tensor.end:
            made = file.tell() - tensor.begin
            raise ValueError(f"{tensor.name}: {made} bytes were made, its shape takes {tensor.end - tensor.begin}")
    out.write(bytes(block.end - file.tell()))
    wrote(block.end)
    return msgspec.structs.replace(block, checksums=out.checksums())


class _Chunks:
    """Writes, and sums up every chunk on the way."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._done: list[str] = []
        self._digest = xxhash.xxh3_128()
        self._left = CHUNK_BYTES

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while len(view):
            piece, view = view[: self._left], view[self._left :]
            self._file.write(piece)
            self._digest.update(piece)
            self._left -= len(piece)
            if not self._left:
                self._end_chunk()

    def checksums(self) -> tuple[str, ...]:
        if self._left < CHUNK_BYTES:
            self._end_chunk()
        return tuple(self._done)

    def _end_chunk(self) -> None:
        self._done.append(self._digest.hexdigest())
        self._digest.reset()
        self._left = CHUNK_BYTES


def _taken_up(partial: Path, blocks: tuple[Block, ...], source: tuple[SourceFile, ...]) -> list[Block]:
    """Blocks that a killed process wrote of the same source in the same layout, as far as they are whole."""
    try:
        note = msgspec.json.decode((partial / _NOTE).read_bytes(), type=StoreIndex)
        data = np.memmap(partial / DATA_FILE, np.uint8, "r")
    except (OSError, ValueError, msgspec.MsgspecError):
        return []
    if note.source != source or note.chunk_bytes != CHUNK_BYTES:
        return []
    whole: list[Block] = []
    for done, planned in zip(note.blocks, blocks, strict=False):
        same = msgspec.structs.replace(done, checksums=()) == planned
        if (
            not same
            or done.end > len(data)
            or tuple(checksum(data[a:b].data) for a, b in done.chunks()) != done.checksums
        ):
            break
        whole.append(done)
    return whole


def _refuse_if_too_large(partial: Path, more_bytes: int) -> None:
    free_bytes = shutil.disk_usage(partial).free
    if more_bytes > free_bytes:
        raise OperatorError(f"{partial.parent}: {more_bytes:,} more bytes are needed, {free_bytes:,} are free")


def _note(path: Path, index: StoreIndex) -> None:
    """Write a small file whole or not at all."""
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(index), indent=1))
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
