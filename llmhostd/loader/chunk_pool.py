"""Where do bytes go that come past the page cache?

Into fixed chunks of a bounded pool that are handed out and given back explicitly (ServerlessLLM §4.2). The memory is
touched once, when the pool is made: page faults cost more than a fast disk's reading.
"""

import mmap
import threading
from collections.abc import Callable

from llmhostd.domain.errors import OperatorError


class ChunkPool:
    """`count` page-aligned chunks of `chunk_bytes` each."""

    def __init__(self, count: int, chunk_bytes: int) -> None:
        """Raises OperatorError when the memory cannot be had."""
        self.chunk_bytes = chunk_bytes
        self.capacity = count
        try:
            self._memory = mmap.mmap(-1, count * chunk_bytes)
        except (OSError, ValueError) as error:
            raise OperatorError(f"{count * chunk_bytes:,} bytes to read into cannot be had: {error}") from error
        self._view = memoryview(self._memory)
        for begin in range(0, count * chunk_bytes, mmap.PAGESIZE):
            self._memory[begin] = 0
        self._free = list(range(count))
        self._returned = threading.Condition()

    @property
    def free(self) -> int:
        """Chunks that nobody has."""
        return len(self._free)

    def allocate(self, unless: Callable[[], bool]) -> "Chunk | None":
        """Take a chunk, waiting until one is given back if need be; None as soon as `unless` says so (see `wake`)."""
        with self._returned:
            self._returned.wait_for(lambda: self._free or unless())
            if unless():
                return None
            number = self._free.pop()
        begin = number * self.chunk_bytes
        return Chunk(number, self._view[begin : begin + self.chunk_bytes])

    def wake(self) -> None:
        """Let everybody who waits ask his `unless` again."""
        with self._returned:
            self._returned.notify_all()

    def release(self, chunk: "Chunk") -> None:
        """Give a chunk back; its bytes are somebody else's from now on. Raises ValueError if nobody has it."""
        with self._returned:
            if chunk.number in self._free:
                raise ValueError(f"chunk {chunk.number} was given back already")
            self._free.append(chunk.number)
            self._returned.notify()


class Chunk:
    """A piece of a pool's memory, and how much of it is filled."""

    __slots__ = ("filled", "memory", "number")

    def __init__(self, number: int, memory: memoryview) -> None:
        self.number = number
        self.memory = memory
        self.filled = 0

    @property
    def data(self) -> memoryview:
        """What was read into it."""
        return self.memory[: self.filled]
