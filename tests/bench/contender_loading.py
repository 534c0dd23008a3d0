"""How long does one way of reading take to have a whole store in memory, or ready to compute?

python contender_loading.py WAY STORE
"""

import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from llmhostd_openvino.engine import OpenVinoEngine

from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import HardwareKey, NodeId
from llmhostd.domain.model import ComputePrecision, KvPrecision
from llmhostd.engines.interface import LoadOptions
from llmhostd.loader.chunk_pool import ChunkPool
from llmhostd.loader.direct_reader import DirectReader, ReadPolicy
from llmhostd.loader.mapped_reader import MappedReader
from llmhostd.loader.store_index import DATA_FILE, read_index

POOL_CHUNKS = 8
Way = Callable[[Path], None]
BF16 = LoadOptions(compute=ComputePrecision.BF16, kv=KvPrecision.U8, threads=len(os.sched_getaffinity(0)))


def by_tensor(store: Path) -> None:
    """Read one tensor after the other into memory of its own."""
    with (store / DATA_FILE).open("rb", buffering=0) as file:
        for one in read_index(store).tensors():
            os.preadv(file.fileno(), [bytearray(one.end - one.begin)], one.begin)


def reader(*, threads: int, direct: bool, verify: bool) -> Way:
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


def warm(*, pipelined: bool) -> Way:
    """Make an instance, reading everything first or while its graphs are compiled, which none is yet."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    node = NodeSpec(
        id=NodeId("cpu0"), engine="openvino", hardware_key=HardwareKey("here"), cores=cores, memory_bytes=1 << 32
    )
    engine = OpenVinoEngine(node)

    def load(store: Path) -> None:
        if not pipelined:
            mapped(store)
        engine.load(store, BF16)

    return load


WAYS: dict[str, Callable[[], Way]] = {
    "by tensor": lambda: by_tensor,
    "+ chunks": lambda: reader(threads=1, direct=False, verify=False),
    "+ direct": lambda: reader(threads=1, direct=True, verify=False),
    "+ threads": lambda: reader(threads=4, direct=True, verify=False),
    "+ checksums": lambda: reader(threads=4, direct=True, verify=True),
    "page cache, checked": lambda: mapped,
    "read, then compiled": lambda: warm(pipelined=False),
    "+ pipeline": lambda: warm(pipelined=True),
}
"""The ablation of ServerlessLLM's fig. 7: of reading, then what a CPU node does, without and with its pipeline."""

if __name__ == "__main__":
    way, directory = WAYS[sys.argv[1]](), Path(sys.argv[2])
    begun = time.perf_counter()
    way(directory)
    print(time.perf_counter() - begun)
