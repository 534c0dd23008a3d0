"""Which files of a model may another host have, and how is one opened for it?

Those that make it up, by name: a store's index, its weights, and what the index names beside them; the files of an
adapter. Nothing that somebody asks for is ever looked for under that name. What else lies there, such as where the
weights came from, is nobody's business.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from llmhostd.domain.errors import CheckpointError, UnknownNameError
from llmhostd.loader.adapter import is_adapter
from llmhostd.loader.adapter_copy import COPIED
from llmhostd.loader.checksum import checksum
from llmhostd.loader.plain_file import FileState, state_of
from llmhostd.loader.store_index import DATA_FILE, INDEX_FILE, arrives, is_companion_name, is_store, read_index

_KNOWN = 64
"""Stores whose files are remembered, while their indexes do not change."""


@dataclass(frozen=True, slots=True)
class ServedFile:
    """An open file. Whoever has it closes `descriptor`."""

    descriptor: int
    size_bytes: int
    etag: str
    """Another for other bytes; of small files it is their checksum."""


def open_served(directory: Path, name: str) -> ServedFile:
    """Open one file of a model. Raises UnknownNameError for what is not handed on, saying why."""
    if not (is_store(directory) or is_adapter(directory)):
        raise UnknownNameError("this model is served from the files that it came in; only stores are handed on")
    if arrives(directory):
        raise UnknownNameError("not all weights of this model are here yet")
    first = directory / (INDEX_FILE if is_store(directory) else COPIED[0])
    try:
        known = _files_of(directory, state_of(first.stat()))
    except (OSError, CheckpointError) as error:
        raise UnknownNameError(f"this model's files cannot be read: {error}") from error
    if name not in known:
        raise UnknownNameError(f"there is no file {name[:100]!r} in it; there are: {', '.join(known)}")
    return _opened(directory / name, *known[name])


def _opened(file: Path, size_bytes: int, etag: str) -> ServedFile:
    """Open a plain file, not what a link leads to: links may lead to what is not the caller's."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise UnknownNameError(f"{file.name}: cannot be read: {error.strerror}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size != size_bytes:
        os.close(descriptor)
        raise UnknownNameError(f"{file.name}: is not the file that it was")
    return ServedFile(descriptor, size_bytes, etag)


@lru_cache(maxsize=_KNOWN)
def _files_of(directory: Path, _first: FileState) -> Mapping[str, tuple[int, str]]:
    """Size and ETag of each file that may be had, for as long as the first of them is the same."""
    if not is_store(directory):
        contents = {name: (directory / name).read_bytes() for name in COPIED if (directory / name).is_file()}
        return {name: (len(content), checksum(content)) for name, content in contents.items()}
    content, index = (directory / INDEX_FILE).read_bytes(), read_index(directory)
    whole = checksum(content)
    files = {INDEX_FILE: (len(content), whole), DATA_FILE: (index.data_bytes, f"{whole}-data")}
    companions = (one for one in index.companions if is_companion_name(one.name))
    return files | {one.name: (one.size_bytes, one.checksum) for one in companions}
