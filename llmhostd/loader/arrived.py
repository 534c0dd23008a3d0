"""How much of a data file is here? Chunk by chunk, whoever brings them."""

from collections.abc import Sequence

from llmhostd.checkpoints.layout import StoredChunk
from llmhostd.domain.words import Word
from llmhostd.loader.arriving_file import ArrivingFile


class Arrived(Word):
    """How far it is: one line of JSON to whoever started the process that sees to it."""

    here_bytes: int = 0
    """Everything before this offset is in the file, checked."""
    present_bytes: int = 0
    """In the file, anywhere."""
    fetched_bytes: int = 0
    """Of it: what came over the network meanwhile, by this process or another."""
    coming_bytes: int = 0
    """Beside it: what has come of chunks that are not there yet."""
    whole: bool = False
    error: str = ""


class ChunkMap:
    """Which chunks are in the file, and right. Not for several threads at once."""

    def __init__(self, chunks: Sequence[StoredChunk], chunk_bytes: int) -> None:
        self.chunks = chunks
        self._there = bytearray(len(chunks))
        self._buffer = memoryview(bytearray(chunk_bytes))
        self._front = 0
        self._present_bytes = self._fetched_bytes = 0
        self._looked = False

    def __contains__(self, number: int) -> bool:
        return bool(self._there[number])

    def add(self, number: int, *, fetched: bool) -> None:
        """Know that a chunk is there. `fetched`: it came over the network just now."""
        size_bytes = self.chunks[number].end - self.chunks[number].begin
        self._there[number] = True
        self._present_bytes += size_bytes
        self._fetched_bytes += size_bytes if fetched else 0
        while self._front < len(self._there) and self._there[self._front]:
            self._front += 1

    def look(self, file: ArrivingFile) -> None:
        """Find what another process has brought since the last look; what was there at the first look is not new."""
        for number, chunk in enumerate(self.chunks):
            if not self._there[number] and file.has(chunk, self._buffer):
                self.add(number, fetched=self._looked)
        self._looked = True

    def state(self) -> Arrived:
        """Say how far it is."""
        here_bytes = self.chunks[self._front - 1].end if self._front else 0
        return Arrived(here_bytes=here_bytes, present_bytes=self._present_bytes, fetched_bytes=self._fetched_bytes)

    def all_there(self) -> Arrived:
        """Say that another process has made it whole."""
        total_bytes = self.chunks[-1].end if self.chunks else 0
        more_bytes = total_bytes - self._present_bytes if self._looked else 0
        return Arrived(
            here_bytes=total_bytes,
            present_bytes=total_bytes,
            fetched_bytes=self._fetched_bytes + more_bytes,
            whole=True,
        )
