"""How does somebody use weights that are still coming over the network?

`Fetch` owns the process that brings them (`fetch_child`). Readers wait for offsets; whoever does not want the weights
any more stops it, at once, whatever the network does. What came is kept.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from llmhostd.domain.errors import CheckpointError
from llmhostd.loader.arrived import Arrived
from llmhostd.loader.range_fetch import FetchPolicy


class Fetch:
    """The weights of one store on their way."""

    def __init__(self, store: Path, policy: FetchPolicy, data_bytes: int, heard: Callable[[], None]) -> None:
        """Begin. `heard` is called, from another thread, whenever more has come, and at the end."""
        self.store = store
        self.data_bytes = data_bytes
        self.state = Arrived()
        """As last heard."""
        self.over = False
        """Nothing more comes: all is there, or it failed."""
        self.began_s = time.monotonic()
        self.here_s: float | None = None
        """Seconds until its last byte was here; None: it is not yet."""
        self._heard = heard
        self._stopped = ""
        self._news = threading.Condition()
        command = [sys.executable, "-P", "-m", "llmhostd.loader.fetch_child", str(store)]
        self._child = subprocess.Popen(
            [*command, msgspec.json.encode(policy).decode()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        threading.Thread(target=self._follow, name="fetch", daemon=True).start()

    @property
    def bytes_per_s(self) -> float:
        """How fast it has come so far."""
        came_bytes = self.state.fetched_bytes + self.state.coming_bytes
        return came_bytes / max(time.monotonic() - self.began_s, 1e-3)

    @property
    def left_bytes(self) -> int:
        """What is still to come."""
        return self.data_bytes - self.state.present_bytes - self.state.coming_bytes

    @property
    def failed(self) -> bool:
        """Whether it will never be all there."""
        return self.over and not self.state.whole

    def wait(self, end: int) -> None:
        """Wait until everything before an offset is in the file. Raises CheckpointError when it will not come."""
        with self._news:
            self._news.wait_for(lambda: self.over or self.state.here_bytes >= end)
            if not self.state.whole and self.state.here_bytes < end:
                raise CheckpointError(self._stopped or self.state.error)

    def wait_for_all(self) -> None:
        """Wait until the file is whole and has its name. Raises CheckpointError."""
        with self._news:
            self._news.wait_for(lambda: self.over)
            if not self.state.whole:
                raise CheckpointError(self._stopped or self.state.error)

    def stop(self, because: str) -> None:
        """Let nothing more come. What came is kept for the next time."""
        with self._news:
            if self.here_s is not None:
                return  # it only waits for the disk
            self._stopped = self._stopped or because
        self._child.kill()

    def _follow(self) -> None:
        assert self._child.stdout is not None  # noqa: S101 - it is a pipe
        with self._child.stdout as lines:
            for line in lines:
                self._hear(msgspec.json.decode(line, type=Arrived), over=False)
        status = self._child.wait()
        assert self._child.stdin is not None  # noqa: S101 - as above
        self._child.stdin.close()
        state = self.state
        if not state.whole and not state.error:
            why = self._stopped or f"{self.store}: the process that fetches its weights ended with status {status}"
            state = msgspec.structs.replace(state, error=why)
        self._hear(state, over=True)

    def _hear(self, state: Arrived, *, over: bool) -> None:
        with self._news:
            self.state, self.over = state, over or state.whole or bool(state.error)
            if self.here_s is None and (state.whole or state.here_bytes >= self.data_bytes):
                self.here_s = time.monotonic() - self.began_s
            self._news.notify_all()
        self._heard()
