"""How can a KV cache grow and shrink under a compiled model without copying it?

Each cache tensor is a prefix of a virtual mapping that was reserved once, as large as it may ever become
(MAP_NORESERVE: no memory until touched). Growing hands the engine a longer prefix; shrinking moves live blocks down and
gives the tail's pages back with MADV_DONTNEED.
"""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import openvino as ov

from llmhostd.domain.errors import EngineError

_MAP_NORESERVE = 0x4000
"""Linux, all architectures that have AVX or NEON; Python 3.11's mmap does not name it."""


_STORED = {"u8": (np.uint8, ov.Type.u8), "bf16": (np.uint16, ov.Type.bf16), "f32": (np.float32, ov.Type.f32)}


@dataclass(frozen=True)
class CachePort:
    """One cache input of a compiled model. `block_shape`: kv heads, tokens, stored width of a head."""

    name: str
    element: str
    """`u8`, `bf16` or `f32`."""
    block_shape: tuple[int, int, int]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of this tensor."""
        heads, tokens, width = self.block_shape
        return heads * tokens * width * np.dtype(_STORED[self.element][0]).itemsize


class KvArena:
    """All cache tensors of one instance; they have the same number of blocks, and one behind them for padding."""

    def __init__(self, ports: Sequence[CachePort], most_blocks: int) -> None:
        """Reserve `most_blocks` for every tensor. Raises EngineError when the address space is limited below that."""
        self._ports = tuple(ports)
        self._most_blocks = most_blocks
        self.blocks = 0
        try:
            self._maps = [_reserve((most_blocks + 1) * port.block_bytes) for port in self._ports]
        except (OSError, OverflowError) as error:
            raise EngineError(f"cannot reserve address space for {most_blocks} KV blocks: {error}") from error

    @property
    def scratch_block(self) -> int:
        """The block that belongs to nobody: what is written there is never read."""
        return self.blocks

    def move(self, moves: Sequence[tuple[int, int]], blocks: int) -> None:
        """Move blocks ahead of `resize` to `blocks`: all sources are read before any is overwritten.

        Raises EngineError, with every block where it was, or where nothing was.
        """
        if not 0 <= blocks <= self._most_blocks:
            raise EngineError(f"{blocks} KV blocks do not fit: this node can hold 0 to {self._most_blocks}")
        if any(not 0 <= source < self.blocks or not 0 <= target < blocks for source, target in moves):
            raise EngineError(f"a KV move leaves the {self.blocks} blocks there are or the {blocks} there will be")
        self._copy(moves, max(blocks, self.blocks))

    def resize(self, blocks: int) -> None:
        """Set the number of blocks; what lies behind them is given back."""
        old, self.blocks = self.blocks, blocks
        for port, reserved in zip(self._ports, self._maps, strict=True):
            self._give_back(reserved, (blocks + 1) * port.block_bytes, (old + 1) * port.block_bytes)

    def _copy(self, moves: Sequence[tuple[int, int]], reach: int) -> None:
        """Copy in all tensors before anything is given back: memory that runs out here has cost nothing."""
        if not moves:
            return
        sources, targets = (list(side) for side in zip(*moves, strict=True))
        try:
            for port, reserved in zip(self._ports, self._maps, strict=True):
                view = _blocks(reserved, port, reach)
                view[targets] = view[sources]
        except MemoryError as error:
            raise EngineError(f"no memory to move {len(moves)} KV blocks: they stay where they are") from error

    def tensors(self) -> list[ov.Tensor]:
        """Return, for each port, the tensor over the blocks there are now."""
        return [
            _tensor(reserved, port, self.blocks + 1) for port, reserved in zip(self._ports, self._maps, strict=True)
        ]

    def release(self) -> None:
        """Give all pages back. Addresses go when the last tensor does."""
        for port, reserved in zip(self._ports, self._maps, strict=True):
            self._give_back(reserved, 0, (self.blocks + 1) * port.block_bytes)
        self.blocks = 0

    @staticmethod
    def _give_back(reserved: mmap.mmap, end: int, old_end: int) -> None:
        first = -(-end // mmap.PAGESIZE) * mmap.PAGESIZE
        last = min(-(-old_end // mmap.PAGESIZE) * mmap.PAGESIZE, len(reserved))
        if last > first:
            reserved.madvise(mmap.MADV_DONTNEED, first, last - first)


def _reserve(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)


def _blocks(reserved: mmap.mmap, port: CachePort, blocks: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(reserved, np.uint8, blocks * port.block_bytes).reshape(blocks, port.block_bytes)


def _tensor(reserved: mmap.mmap, port: CachePort, blocks: int) -> ov.Tensor:
    raw = np.frombuffer(reserved, np.uint8, blocks * port.block_bytes)
    stored, element = _STORED[port.element]
    return ov.Tensor(raw.view(stored), ov.Shape([blocks, *port.block_shape]), element)
