"""How do a store's weights come from a web server into the file that is mapped? The process that does it.

Apart from the worker, whose thread it would hold up, and killed when nobody wants the weights any more: a network that
hangs hurts nobody. A few connections fetch chunk after chunk in the file's order; each is checked before it is written.
"""

import os
import sys
import threading
import time
from pathlib import Path

import httpx
import msgspec

from llmhostd.checkpoints.layout import StoredChunk
from llmhostd.domain.errors import CheckpointError, LlmhostdError
from llmhostd.loader.arrived import Arrived, ChunkMap
from llmhostd.loader.arriving_file import ArrivingFile
from llmhostd.loader.checksum import checksum
from llmhostd.loader.origins import Origin, Origins
from llmhostd.loader.range_fetch import FetchPolicy, RangeFetch, StoppedError
from llmhostd.loader.store_index import DATA_FILE, Remote, arrives, read_index, read_remote

_TELL_EVERY_S = 0.1
_NICE = 10
"""It takes what those who compute leave."""


class _Fetching:
    """One data file on its way."""

    def __init__(self, remote: Remote, policy: FetchPolicy, file: ArrivingFile, came: ChunkMap, buffer: int) -> None:
        """`buffer`: bytes of the largest chunk."""
        self._origins, self._policy, self._file = Origins(remote, policy), policy, file
        self._came, self._buffer = came, buffer
        self._next = 0
        self._coming: dict[int, RangeFetch] = {}
        """By the number of the chunk that each fetches."""
        self._running = 0
        self._error = ""
        self._news = threading.Condition()

    def run(self) -> Arrived:
        """Fetch until all is there or something fails; tells how far it is meanwhile."""
        count = min(self._policy.fetch_connections, len(self._came.chunks))
        self._running = count
        for _ in range(count):
            threading.Thread(target=self._work, daemon=True).start()
        while True:
            with self._news:
                self._news.wait_for(lambda: not self._running, _TELL_EVERY_S)
                state, over = self._state(), not self._running
            if over:
                return state
            tell(state)

    def _state(self) -> Arrived:
        coming_bytes = sum(one.coming_bytes for one in self._coming.values())
        return msgspec.structs.replace(self._came.state(), coming_bytes=coming_bytes, error=self._error)

    def _work(self) -> None:
        buffer = memoryview(bytearray(self._buffer))
        error = ""
        try:
            while (number := self._take()) is not None:
                self._bring(number, buffer)
        except StoppedError:
            pass
        except (LlmhostdError, OSError, httpx.HTTPError) as problem:
            error = str(problem)
        with self._news:
            self._error = self._error or error
            self._running -= 1
            self._news.notify_all()

    def _take(self) -> int | None:
        with self._news:
            while not self._error and self._next < len(self._came.chunks):
                self._next += 1
                if self._next - 1 not in self._came:
                    return self._next - 1
            return None

    def _bring(self, number: int, buffer: memoryview) -> None:
        chunk = self._came.chunks[number]
        there = self._file.has(chunk, buffer)
        if not there:
            data = buffer[: chunk.end - chunk.begin]
            self._fetch(chunk, data, number)
            self._file.put(chunk, data)
        with self._news:
            self._came.add(number, fetched=not there)
            self._coming.pop(number, None)
        if not there:
            self._file.flush()

    def _fetch(self, chunk: StoredChunk, data: memoryview, number: int) -> None:
        """From whoever has it."""
        while True:
            origin = self._origins.now
            ranges = origin.ranges(lambda: bool(self._error))
            with self._news:
                self._coming[number] = ranges
            try:
                _fetch_checked(chunk, data, ranges, origin)
            except LlmhostdError as error:
                self._origins.failed(origin, error)
            else:
                return


def _fetch_checked(chunk: StoredChunk, data: memoryview, ranges: RangeFetch, origin: Origin) -> None:
    what = (
        f"{origin.url.shown}/{DATA_FILE}: block `{chunk.block}`, chunk {chunk.place}"
        f" (bytes {chunk.begin} to {chunk.end})"
    )
    for _ in range(2):  # once more, should only its way here have damaged it
        ranges.fetch(chunk.begin, data, what)
        if checksum(data) == chunk.checksum:
            return
    was, now = origin.address.etag, ranges.etag
    replaced = f"the file was replaced there (ETag {was}, now {now})" if was != now else "it is damaged there"
    raise CheckpointError(f"{what}: came twice with a wrong checksum: {replaced}; what was right is kept")


def fetch(store: Path, policy: FetchPolicy) -> Arrived:
    """Bring a store's weights here, or follow another process that does. Raises CheckpointError."""
    index = read_index(store)
    came = ChunkMap(tuple(index.chunks()), index.chunk_bytes)
    file = _taken(store, came)
    if file is None:
        return came.all_there()
    remote = read_remote(store)
    if remote is None:
        raise CheckpointError(f"{store}: does not say where its weights are")
    file.begin(remote.data_bytes, policy.fetch_spare_bytes)
    state = _Fetching(remote, policy, file, came, index.chunk_bytes).run()
    if state.error:
        return state
    tell(state)  # whoever waits may go on while the disk does
    file.finish()
    return msgspec.structs.replace(state, whole=True)


def _taken(store: Path, came: ChunkMap) -> ArrivingFile | None:
    """Wait until the file is ours to fill, and say meanwhile what another process brings into it.

    None: that has made it whole.
    """
    while arrives(store):
        file = ArrivingFile(store)
        if file.locked() and file.still_there():
            if arrives(store):
                return file
            file.discard()  # made by ourselves, just after the other one got its name
        else:
            came.look(file)
            tell(came.state())
        file.close()
        time.sleep(_TELL_EVERY_S)
    return None


def tell(state: Arrived) -> None:
    """Say how far it is."""
    os.write(sys.stdout.fileno(), msgspec.json.encode(state) + b"\n")


def _end_with_parent() -> None:
    """Nobody writes to our standard input; it ends when whoever started us does."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(0)


def main() -> None:
    """`python -m llmhostd.loader.fetch_child STORE POLICY`."""
    store, policy = Path(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=FetchPolicy)
    os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        state = fetch(store, policy)
    except (LlmhostdError, OSError) as error:
        state = Arrived(error=str(error))
    tell(state)
    os._exit(0)


if __name__ == "__main__":
    main()
