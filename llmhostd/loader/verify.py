"""Are a store's bytes on the disk those that were written? All of them, past the page cache."""

from collections.abc import Callable
from pathlib import Path

from llmhostd.checkpoints.layout import CHUNK_BYTES
from llmhostd.domain.errors import CheckpointError
from llmhostd.loader.chunk_pool import ChunkPool
from llmhostd.loader.direct_reader import DirectReader
from llmhostd.loader.safetensors import describe
from llmhostd.loader.store_index import DATA_FILE, arrives, is_store, read_index

_CHUNKS = 8


def verify(path: Path, progress: Callable[[int, int], None]) -> int:
    """Read a store and hold it against its checksums; returns its bytes. `progress` hears (bytes read, bytes in all).

    Raises CheckpointError naming the file, block and chunk that is damaged, or saying that there are no checksums.
    """
    describe(path)
    if not is_store(path):
        raise CheckpointError(f"{path}: is served as it came and has no checksums; `models add` it to make a store")
    if arrives(path):
        raise CheckpointError(f"{path}: its weights are not here yet; they come, and are checked, when it is loaded")
    index = read_index(path)
    pool = ChunkPool(_CHUNKS, max(index.chunk_bytes, CHUNK_BYTES))
    for read in DirectReader(path / DATA_FILE, index, pool):
        done = read.begin + read.chunk.filled
        pool.release(read.chunk)
        progress(done, index.data_bytes)
    return index.data_bytes
