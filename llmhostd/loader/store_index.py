"""What lies in this directory, if it was made for loading? (ServerlessLLM §4.1; the format: `checkpoints.layout`.)"""

from pathlib import Path

import msgspec

from llmhostd.checkpoints.layout import StoreIndex, check
from llmhostd.domain.errors import CheckpointError
from llmhostd.loader.header import StoredTensor

DATA_FILE = "weights.llmhostd"
INDEX_FILE = "weights.llmhostd.json"

_MAX_INDEX_BYTES = 64_000_000


def is_store(path: Path) -> bool:
    """Whether a checkpoint directory is in our own format."""
    return (path / INDEX_FILE).exists()


def read_index(path: Path) -> StoreIndex:
    """Read and check the index of a store directory. Raises CheckpointError naming the file and what is wrong in it."""
    file, data = path / INDEX_FILE, path / DATA_FILE
    try:
        if file.stat().st_size > _MAX_INDEX_BYTES:
            raise CheckpointError(f"{file}: is larger than {_MAX_INDEX_BYTES} bytes")
        index = msgspec.json.decode(file.read_bytes(), type=StoreIndex)
        data_bytes = data.stat().st_size
    except OSError as error:
        raise CheckpointError(f"{error.filename or file}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{file}: is not an index of weights: {error}") from error
    check(index, str(file), data_bytes)
    return index


def stored_tensors(path: Path, index: StoreIndex) -> dict[str, StoredTensor]:
    """Where each tensor of a store lies."""
    data = path / DATA_FILE
    return {one.name: StoredTensor(data, one.dtype, one.shape, one.begin, one.end) for one in index.tensors()}
