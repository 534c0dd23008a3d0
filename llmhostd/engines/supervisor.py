"""Is the node's worker alive, and if not, who is to blame and when is it started again?"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from llmhostd.domain.errors import OperatorError
from llmhostd.domain.ids import InstanceId
from llmhostd.domain.reports import IterationReported, NodeDown, NodeReport
from llmhostd.domain.words import Message
from llmhostd.engines.crash_note import CrashNote, create_crash_note
from llmhostd.engines.frames import (
    FrameError,
    ShutdownFrame,
    StartFrame,
    WorkerRefused,
    encode_frame,
    up_reader,
)
from llmhostd.engines.huge_pages import with_huge_pages

log = logging.getLogger(__name__)

_LAST_WORDS_S = 1.0
"""How long after a worker's death what it had written is waited for."""


@dataclass(frozen=True, slots=True)
class SupervisorPolicy:
    """How patient the daemon is with a worker."""

    first_backoff_s: float = 0.1
    """Wait before a worker is started again; doubled each time one dies that never computed anything."""
    most_backoff_s: float = 30.0
    """The longest wait."""
    stop_timeout_s: float = 5.0
    """When told to stop, a worker may finish what it does this long; then it is killed."""


class WorkerSupervisor:
    """Keeps one node's worker running. All calls from the event loop's thread."""

    def __init__(
        self,
        start: StartFrame,
        hear: Callable[[NodeReport | NodeDown], None],
        policy: SupervisorPolicy | None = None,
    ) -> None:
        """`hear` is called with every report in order, and with one `NodeDown` after the last report of each worker."""
        self._start = start
        self._hear = hear
        self._policy = policy or SupervisorPolicy()
        self._stopping = asyncio.Event()
        self._wire: _Wire | None = None
        self._process: asyncio.subprocess.Process | None = None
        self.restarts = 0
        """How often the worker was started after the first time."""

    @property
    def pid(self) -> int | None:
        """The worker's process id while it runs."""
        return self._process.pid if self._process else None

    def send(self, message: Message) -> None:
        """Send a command. One that no worker receives is lost, as its `NodeDown` says."""
        if self._wire is not None:
            self._wire.send(message)

    async def run(self) -> None:
        """Start the worker, and start it again whenever it dies, until `stop`.

        Raises OperatorError if the worker says that it can never be this node (an unknown engine, say).
        """
        backoff_s = self._policy.first_backoff_s
        while not self._stopping.is_set():
            if await self._one_life():
                backoff_s = self._policy.first_backoff_s
            if not self._stopping.is_set():
                await _wait(self._stopping, backoff_s)
                backoff_s = min(2 * backoff_s, self._policy.most_backoff_s)
                self.restarts += 1

    async def stop(self) -> None:
        """Let the worker end, kill it if it does not, and let `run` return."""
        self._stopping.set()
        process = self._process
        if process is None:
            return
        self.send(ShutdownFrame())
        try:
            await asyncio.wait_for(process.wait(), self._policy.stop_timeout_s)
        except TimeoutError:
            log.warning("worker %s does not stop; killing it", self._start.spec.id)
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def _one_life(self) -> bool:
        """From start to death; whether it was of any use in between."""
        node_id = self._start.spec.id
        ours, theirs = socket.socketpair()
        note, note_fd = create_crash_note()
        oom_kills = _oom_kills()
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "llmhostd.worker", str(theirs.fileno()), str(note_fd), str(os.getpid()),
                pass_fds=(theirs.fileno(), note_fd), stdin=asyncio.subprocess.DEVNULL, stdout=sys.__stderr__,
                env=with_huge_pages(os.environ),
            )  # fmt: skip
        finally:
            theirs.close()
            os.close(note_fd)
        log.info("worker %s: process %d", node_id, self._process.pid)
        wire = self._wire = _Wire(self._hear, self._process.kill)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: wire, ours)
        wire.send(self._start)
        if self._stopping.is_set():
            wire.send(ShutdownFrame())
        status = await self._process.wait()
        await _wait(wire.closed, _LAST_WORDS_S)
        self._process = self._wire = None
        suspect, because = autopsy(status, note, oom_killed=_oom_kills() > oom_kills)
        note.close()
        if self._stopping.is_set():
            because = "it was told to stop"
        bus_error, because = status == -signal.SIGBUS, wire.refused or because
        self._hear(NodeDown(node_id=node_id, suspect=suspect, because=because, bus_error=bus_error))
        if wire.refused:
            raise OperatorError(f"node {node_id}: {wire.refused}")
        log.log(logging.INFO if self._stopping.is_set() else logging.ERROR, "worker %s: %s", node_id, because)
        return wire.computed


def autopsy(status: int, note: CrashNote, *, oom_killed: bool) -> tuple[InstanceId | None, str]:
    """Say who is to blame for a worker's death, and why it died.

    Nobody is, when it was killed from outside: the kernel counts whom it kills for want of memory, anybody else with a
    SIGKILL is a person or a program with a purpose.
    """
    in_use = note.suspect()
    during = f" while {in_use} was in use" if in_use else ""
    if status == -signal.SIGKILL and not oom_killed:
        return None, "its worker was killed from outside (SIGKILL)"
    if status == -signal.SIGKILL:
        return in_use, f"its worker was killed by the kernel for want of memory{during}"
    if status < 0:
        return in_use, f"its worker crashed ({signal.Signals(-status).name}){during}"
    return in_use, f"its worker ended with status {status}{during}; its log says more"


class _Wire(asyncio.Protocol):
    """The daemon's end of the socket. Reports are heard as they arrive, with no task in between."""

    def __init__(self, hear: Callable[[NodeReport | NodeDown], None], kill: Callable[[], None]) -> None:
        self._hear = hear
        self._kill = kill
        self._reader = up_reader()
        self._transport: asyncio.WriteTransport | None = None
        self.closed = asyncio.Event()
        self.refused = ""
        self.computed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self.closed.set()

    def send(self, message: Message) -> None:
        if self._transport is not None:
            self._transport.write(encode_frame(message))

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (message := self._reader.next_message()) is not None:
                if isinstance(message, WorkerRefused):
                    self.refused = message.error
                else:
                    self.computed = self.computed or isinstance(message, IterationReported)
                    self._hear(message)
        except FrameError:
            # A worker that babbles has lost its mind; what it has done is recomputed from tokens.
            log.exception("a worker sent what is no report; killing it")
            self._kill()


def _oom_kills() -> int:
    """How many processes the kernel has killed for want of memory, in any cgroup."""
    for line in Path("/proc/vmstat").read_text().splitlines():
        name, _, count = line.partition(" ")
        if name == "oom_kill":
            return int(count)
    return 0


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    """Wait for an event, but not for ever."""
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return
