"""Computes with weights, caches and adapters that end where no page follows, in a process of its own.

python bounds_probe.py CHECKPOINT COMPUTE KV room|none|beyond

Prints sums of logits, as the weights lie and when they are packed; `beyond` reads one byte too far.
"""

import ctypes
import mmap
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
from llmhostd_openvino import kv_arena, open_engine, slot_factors

from llmhostd.checkpoints.adapter import linear_names
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import HardwareKey, NodeId
from llmhostd.domain.model import AdapterSlots, ComputePrecision, KvPrecision
from llmhostd.engines.interface import LoadOptions
from llmhostd.engines.paged_contexts import Context, PagedContexts
from llmhostd.loader.safetensors import Checkpoint

PAGE = mmap.PAGESIZE
LENGTHS = (1, 2, 3, 5, 8, 31, 33, 70)
NODE = NodeSpec(
    id=NodeId("cpu0"), engine="openvino", hardware_key=HardwareKey("probe"), cores=(0, 1), memory_bytes=4 << 20
)

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def fenced(size: int) -> Any:
    """Make zeroed memory whose end is followed by a page that nobody may touch; it is never given back."""
    pages = -(-size // PAGE)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    begin = libc.mmap(None, (pages + 1) * PAGE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    fence = begin + pages * PAGE
    assert libc.mprotect(fence, PAGE, 0) == 0
    kind = type("Fenced", (ctypes.Array,), {"_type_": ctypes.c_ubyte, "_length_": size, "madvise": lambda *_: None})
    return kind.from_address(fence - size)


def fenced_copy(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    copy = np.frombuffer(fenced(values.nbytes), values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


def fenced_zeros(shapes: dict[str, tuple[int, int]], stored: np.dtype[Any]) -> dict[str, npt.NDArray[Any]]:
    return {name: fenced_copy(np.zeros(shape, stored)) for name, shape in shapes.items()}


def main(path: str, compute: str, kv: str, how: str) -> None:
    if how == "beyond":
        at = fenced(100)
        print(ctypes.c_ubyte.from_address(ctypes.addressof(at) + 99).value, flush=True)
        print(ctypes.c_ubyte.from_address(ctypes.addressof(at) + 100).value, flush=True)
    room = AdapterSlots(slots=2, rank=5, modules=linear_names()) if how == "room" else None
    options = LoadOptions(compute=ComputePrecision(compute), kv=KvPrecision(kv), threads=2, adapters=room)
    array, rows = Checkpoint.array, Checkpoint.rows
    with (
        mock.patch.object(Checkpoint, "array", lambda self, name: fenced_copy(array(self, name))),
        mock.patch.object(
            Checkpoint, "rows", lambda self, names: None if (joint := rows(self, names)) is None else fenced_copy(joint)
        ),
        mock.patch.object(kv_arena, "_reserve", fenced),
        mock.patch.object(slot_factors, "_zeros", fenced_zeros),
    ):
        instance = open_engine(NODE).load(Path(path), options)
        blocks = NODE.memory_bytes // instance.kv_bytes_per_block  # all there can be: the last ends at the fence
        contexts = PagedContexts([instance], kv_blocks=blocks)
        sums = []
        for _ in ("as it lies", "packed"):
            work = [(Context([3 + place % 97 for place in range(tokens)]), tokens) for tokens in LENGTHS]
            sums += [float(np.abs(contexts.step([one])).sum()) for one in work]
            for one, _ in work:
                one.tokens.append(9)
            sums.append(float(np.abs(contexts.step([(one, 1) for one, _ in work])).sum()))
            for one, _ in work:
                contexts.release(one)
            instance.pack()
    print(" ".join(f"{one:.6g}" for one in sums))


if __name__ == "__main__":
    main(*sys.argv[1:])
