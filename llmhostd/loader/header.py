"""What does a safetensors file say it holds, and can that be true?

Layout: u64 little-endian header length, a JSON object `name -> {dtype, shape, data_offsets}`, then the data. The header
is not trusted: every bound is checked against the file's size before anything is mapped.
"""

import itertools
import json
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from llmhostd.checkpoints.dtypes import DTYPE_BYTES, stored_bytes
from llmhostd.domain.errors import CheckpointError
from llmhostd.loader.plain_file import opened

_MAX_HEADER_BYTES = 100_000_000
"""The bound that the format's own library sets."""
_GIT_LFS = b"version https://git-lfs"


class StoredTensor(NamedTuple):
    """Where one tensor lies. `begin` and `end` are offsets into the file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(file: Path) -> dict[str, StoredTensor]:
    """Read and check one file's header. Raises CheckpointError naming the file and the tensor."""
    with opened(file) as stream:
        size = os.fstat(stream.fileno()).st_size
        prefix = stream.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if len(prefix) < 8 or length > size - 8:
            _fail(file, _without_header(prefix + stream.read(len(_GIT_LFS)), size))
        if length > _MAX_HEADER_BYTES:
            _fail(file, f"has a header of {length} bytes; at most {_MAX_HEADER_BYTES} are read")
        raw = stream.read(length)
    try:
        header = json.loads(raw, object_pairs_hook=lambda pairs: _unique(file, pairs))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: header is not JSON: {error}") from error
    if not isinstance(header, dict):
        _fail(file, "header is not a JSON object")
    header.pop("__metadata__", None)
    tensors = {name: _tensor(file, name, entry, 8 + length, size) for name, entry in header.items()}
    _check_overlap(file, tensors)
    return tensors


def _without_header(begin: bytes, size: int) -> str:
    """Say what it is instead, by what it begins with."""
    if begin[8:9] in (b"", b"{"):
        return f"is truncated: {size} bytes do not hold its header"
    if begin.startswith(_GIT_LFS):
        return "is a pointer of Git LFS, not the weights: `git lfs pull` brings them"
    return f"is not safetensors: it begins with {begin!r}"


def _fail(file: Path, message: str) -> NoReturn:
    raise CheckpointError(f"{file}: {message}")


def _unique(file: Path, pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for name, value in pairs:
        if name in entries:
            _fail(file, f"header names `{name}` twice")
        entries[name] = value
    return entries


def _sizes(value: object) -> tuple[int, ...] | None:
    """Return a list of whole numbers >= 0 as a tuple; None if it is anything else."""
    if isinstance(value, list) and all(type(one) is int and one >= 0 for one in value):
        return tuple(value)
    return None


def _tensor(file: Path, name: str, entry: object, base: int, file_bytes: int) -> StoredTensor:
    if not isinstance(entry, dict):
        _fail(file, f"tensor `{name}`: entry is not an object")
    dtype, shape, offsets = entry.get("dtype"), _sizes(entry.get("shape")), _sizes(entry.get("data_offsets"))
    if not isinstance(dtype, str):
        _fail(file, f"tensor `{name}`: dtype {dtype!r} is not a word")
    if shape is None or offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        _fail(file, f"tensor `{name}`: shape or data_offsets are malformed")
    expected = stored_bytes(dtype, shape) if dtype in DTYPE_BYTES else None  # others lie there, and are not used
    if expected is not None and offsets[1] - offsets[0] != expected:
        _fail(
            file,
            f"tensor `{name}`: {offsets[1] - offsets[0]} bytes are stored, {dtype} {list(shape)} needs {expected}",
        )
    begin, end = base + offsets[0], base + offsets[1]
    if end > file_bytes:
        _fail(file, f"is truncated: tensor `{name}` ends at byte {end}, the file at {file_bytes}")
    return StoredTensor(file, dtype, shape, begin, end)


def _check_overlap(file: Path, tensors: dict[str, StoredTensor]) -> None:
    ordered = sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end))
    for (before, first), (after, second) in itertools.pairwise(ordered):
        if second.begin < first.end:
            _fail(file, f"tensors `{before}` and `{after}` overlap")
