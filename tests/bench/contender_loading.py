"""How long does one way of reading take to have a whole store in memory?

python contender_loading.py WAY STORE
"""

import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from llmhostd.loader.chunk_pool import ChunkPool
from llmhostd.loader.direct_reader import DirectReader, ReadPolicy
from llmhostd.loader.mapped_reader import MappedReader
from llmhostd.loader.store_index import DATA_FILE, read_index

POOL_CHUNKS = 8


def by_tensor(store: Path) -> None:
    """Read one tensor after the other into memory of its own."""
    with (store / DATA_FILE).open("rb", buffering=0) as file:
        for one in read_index(store).tensors():
            os.preadv(file.fileno(), [bytearray(one.end - one.begin)], one.begin)


def reader(*, threads: int, direct: bool, verify: bool) -> Callable[[Path], None]:
    """Read chunks through the pool."""

    def read(store: Path) -> None:
        index = read_index(store)
        pool = ChunkPool(POOL_CHUNKS, index.chunk_bytes)
        policy = ReadPolicy(threads=threads, direct=direct, verify=verify)
        for one in DirectReader(store / DATA_FILE, index, pool, policy):
            pool.release(one.chunk)

    return read


def mapped(store: Path) -> None:
    """What a CPU node does: the page cache, checked."""
    index = read_index(store)
    with (store / DATA_FILE).open("rb") as file:
        view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    MappedReader(store / DATA_FILE, view, index).wait(index.data_bytes)


WAYS: dict[str, Callable[[Path], None]] = {
    "by tensor": by_tensor,
    "+ chunks": reader(threads=1, direct=False, verify=False),
    "+ direct": reader(threads=1, direct=True, verify=False),
    "+ threads": reader(threads=4, direct=True, verify=False),
    "+ checksums": reader(threads=4, direct=True, verify=True),
    "page cache, checked": mapped,
}
"""The ablation of ServerlessLLM's fig. 7, as far as it is about disks, and what a CPU node does."""

if __name__ == "__main__":
    way, directory = WAYS[sys.argv[1]], Path(sys.argv[2])
    begun = time.perf_counter()
    way(directory)
    print(time.perf_counter() - begun)
