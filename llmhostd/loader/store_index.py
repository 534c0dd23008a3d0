"""What lies in this directory, if it was made for loading? (ServerlessLLM §4.1; the format: `checkpoints.layout`.)"""

from pathlib import Path

import msgspec

from llmhostd.checkpoints.layout import StoreIndex, check
from llmhostd.domain.errors import CheckpointError
from llmhostd.domain.words import Word
from llmhostd.loader.header import StoredTensor
from llmhostd.loader.plain_file import content

DATA_FILE = "weights.llmhostd"
INDEX_FILE = "weights.llmhostd.json"

ARRIVING_FILE = f"{DATA_FILE}.arriving"
"""The data file until all of its bytes have come over the network."""
REMOTE_FILE = f"{DATA_FILE}.remote.json"
"""Where they come from."""
MAX_INDEX_BYTES = 64_000_000


class Address(Word):
    """One place that has the weights of a store."""

    url: str
    """Of the store's directory, secrets included."""
    etag: str = ""
    """Of the data file when the model was added; servers may have none."""
    key: str = ""
    """What a peer is opened with."""


class Remote(Word):
    """Where the weights of a store are to be fetched: from the first of these places that has them."""

    data_bytes: int
    addresses: tuple[Address, ...]


def read_remote(path: Path) -> Remote | None:
    """Say where a store's weights come from; None: it was made here. Raises CheckpointError."""
    file = path / REMOTE_FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=Remote)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file}: does not say where weights come from: {error}") from error


def is_store(path: Path) -> bool:
    """Whether a checkpoint directory is in our own format, or what is left of it."""
    return any((path / one).exists() for one in (INDEX_FILE, DATA_FILE, REMOTE_FILE))


def arrives(path: Path) -> bool:
    """Whether a store's weights are not all here yet: they come over the network when it is loaded."""
    return not (path / DATA_FILE).exists() and (path / REMOTE_FILE).exists()


def is_companion_name(name: str) -> bool:
    """Whether a file beside the weights may be called so: it leads nowhere else, and is none of the store's own."""
    plain = 0 < len(name) <= 255 and not any(character in name for character in "/\\\0")
    return plain and not name.startswith((".", DATA_FILE))


def read_index(path: Path) -> StoreIndex:
    """Read and check the index of a store directory. Raises CheckpointError naming the file and what is wrong in it.

    Of weights that are not here, where they come from must be known.
    """
    file, data = path / INDEX_FILE, path / DATA_FILE
    index = _decoded(file)
    try:
        remote = read_remote(path) if arrives(path) else None
        data_bytes = data.stat().st_size if remote is None else remote.data_bytes
    except OSError as error:
        raise CheckpointError(f"{data}: cannot be read: {error.strerror}") from error
    check(index, str(file), data_bytes)
    return index


def _decoded(file: Path) -> StoreIndex:
    try:
        return msgspec.json.decode(content(file, MAX_INDEX_BYTES), type=StoreIndex)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{file}: is not an index of weights: {error}") from error


def data_bytes_of(file: Path) -> int:
    """How many bytes an index says that its data file has, whatever that has now. Raises CheckpointError."""
    return _decoded(file).data_bytes


def stored_tensors(path: Path, index: StoreIndex) -> dict[str, StoredTensor]:
    """Where each tensor of a store lies."""
    data = path / DATA_FILE
    return {one.name: StoredTensor(data, one.dtype, one.shape, one.begin, one.end) for one in index.tensors()}
