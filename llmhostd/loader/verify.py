"""Are a store's bytes on the disk those that were written? All of them, past the page cache."""

from collections.abc import Callable
from pathlib import Path

from llmhostd.checkpoints.layout import CHUNK_BYTES, StoreIndex
from llmhostd.domain.errors import CheckpointError
from llmhostd.loader.chunk_pool import ChunkPool
from llmhostd.loader.direct_reader import DirectReader
from llmhostd.loader.safetensors import describe
from llmhostd.loader.store_index import DATA_FILE, arrives, is_store, read_index
from llmhostd.loader.store_writer import companion_files

_CHUNKS = 8


def verify(path: Path, progress: Callable[[int, int], None]) -> int:
    """Read a store and hold it against its checksums; returns its bytes. `progress` hears (bytes read, bytes in all).

    Raises CheckpointError naming the file (of the weights: block and chunk) that is damaged, or saying that there are
    no checksums.
    """
    describe(path)
    if not is_store(path):
        raise CheckpointError(f"{path}: is served as it came and has no checksums; `models add` it to make a store")
    if arrives(path):
        raise CheckpointError(f"{path}: its weights are not here yet; they come, and are checked, when it is loaded")
    index = read_index(path)
    _check_companions(path, index)
    pool = ChunkPool(_CHUNKS, max(index.chunk_bytes, CHUNK_BYTES))
    for read in DirectReader(path / DATA_FILE, index, pool):
        done = read.begin + read.chunk.filled
        pool.release(read.chunk)
        progress(done, index.data_bytes)
    return index.data_bytes


def _check_companions(path: Path, index: StoreIndex) -> None:
    """Hold config, tokenizer and chat template against what they were; another one says, or computes, other things."""
    known, there = ({one.name: one for one in files} for files in (index.companions, companion_files(path)))
    for name in sorted(known.keys() | there.keys()):
        if known.get(name) != there.get(name):
            raise CheckpointError(
                f"{path / name}: is not what it was when the store was made; remove the model and add it again"
            )
