"""A running daemon's state as it is at any one moment, and what its callers know then.

The daemon is stopped by a signal while its state is copied, as `kill -9` or a power cut would leave it; callers are
plain sockets, read by hand, so that a test knows to the byte what had been said before that moment.
"""

import contextlib
import json
import os
import random
import selectors
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daemon_process import DaemonProcess

from llmhostd.state.database import open_database
from llmhostd.state.flex import FlexCall, FlexTable
from llmhostd.state.last_run import LastRun, last_run
from llmhostd.state.models import ModelTable
from llmhostd.state.placements import Placement, PlacementTable

WAL = "state.db-wal"


@dataclass
class Caller:
    """One streamed completion."""

    name: str
    body: dict[str, Any]
    connection: socket.socket
    heard: bytearray = field(default_factory=bytearray)
    hung_up: bool = False
    over: bool = False
    """Nothing more comes."""

    @property
    def accepted(self) -> bool:
        """Whether the daemon said yes."""
        return self.heard.startswith(b"HTTP/1.1 200") and b"\r\n\r\n" in self.heard

    @property
    def finished(self) -> bool:
        """Whether the whole answer is there."""
        return b"data: [DONE]" in self.heard

    @property
    def chunks(self) -> int:
        """How many pieces came."""
        return self.heard.count(b'data: {"')

    @property
    def text(self) -> str:
        """What was said so far."""
        events = [line[6:] for line in self.heard.splitlines() if line.startswith(b'data: {"') and line.endswith(b"}")]
        return "".join(json.loads(one)["choices"][0]["delta"].get("content") or "" for one in events)


class Callers:
    """All of them, in one thread."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self._port = int(daemon.url.rpartition(":")[2])
        self._selector = selectors.DefaultSelector()
        self.all: list[Caller] = []

    def ask(self, name: str, body: dict[str, Any]) -> Caller:
        """Send a call; its answer comes by `listen`."""
        content = json.dumps(body | {"stream": True}).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"X-Request-Id: {name}\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        )
        caller = Caller(name, body, socket.create_connection(("127.0.0.1", self._port)))
        caller.connection.sendall(head.encode() + content)
        self._selector.register(caller.connection, selectors.EVENT_READ, caller)
        self.all.append(caller)
        return caller

    def listen(self, seconds: float) -> None:
        """Take in what comes for so long."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0 and self._selector.get_map():
            self._take_in(left_s)
        time.sleep(max(0.0, end_s - time.monotonic()))

    def hear_all(self) -> None:
        """Take in all that was said already. The daemon is stopped: nothing follows."""
        while self._take_in(0.0):
            pass

    def hang_up(self, caller: Caller) -> None:
        """Give a call up."""
        caller.hung_up = True
        self._end(caller)

    def close(self) -> None:
        """Let everybody hang up."""
        for caller in self.all:
            self.hang_up(caller)
        self._selector.close()

    def _take_in(self, timeout_s: float) -> bool:
        ready = self._selector.select(timeout_s)
        for key, _ in ready:
            caller: Caller = key.data
            data = b""
            with contextlib.suppress(ConnectionError):
                data = caller.connection.recv(1 << 16)
            caller.heard += data
            if not data:
                self._end(caller)
        return bool(ready)

    def _end(self, caller: Caller) -> None:
        if not caller.over:
            caller.over = True
            self._selector.unregister(caller.connection)
            caller.connection.close()


@contextlib.contextmanager
def standing_still(pid: int) -> Iterator[None]:
    """Stop all threads of a process for as long as the block takes."""
    os.kill(pid, signal.SIGSTOP)
    try:
        tasks = Path(f"/proc/{pid}/task")
        while any((one / "stat").read_text().rpartition(")")[2].split()[0] not in "TtZX" for one in tasks.iterdir()):
            time.sleep(0.0005)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def copy_state(state: Path, copy: Path) -> None:
    """Copy what is on the disk, as a process would find it that is started in the place of a killed one."""
    copy.mkdir()
    for file in state.iterdir():
        if file.is_file() and not file.is_socket():
            shutil.copyfile(file, copy / file.name)


def synced(state: Path) -> tuple[bytes, int]:
    """Say which log of the database is in use and how long it is; called when a durable commit has just returned."""
    log = state / WAL
    try:
        return log.read_bytes()[:32], log.stat().st_size
    except FileNotFoundError:
        return b"", 0


def cut_power(copy: Path, durable: tuple[bytes, int], chance: random.Random) -> bool:
    """Take from a copy what the disk need not have had yet: a random part of the log beyond what was synced, with what
    is left of its last page in disorder; and the index over it. Says whether the log is still the one of `durable`."""
    with contextlib.suppress(FileNotFoundError):
        (copy / "state.db-shm").unlink()
    head, least = durable
    log = copy / WAL
    if not log.exists() or log.read_bytes()[:32] != head:
        return False
    size = log.stat().st_size
    keep = chance.randint(least, size)
    os.truncate(log, keep)
    torn = min(keep - least, chance.randint(0, 4096))
    with log.open("r+b") as file:
        file.seek(keep - torn)
        file.write(chance.randbytes(torn))
    return True


@dataclass
class Found:
    """What a new daemon would find in a copy."""

    waiting: dict[str, FlexCall]
    placements: list[Placement]
    models: set[str]
    last: LastRun | None


def look_into(copy: Path) -> Found:
    """Read a copy as a new daemon does."""
    with open_database(copy) as db:
        assert db.execute("pragma quick_check").fetchone() == ("ok",)
        calls = [FlexTable(db).find(one) for one in FlexTable(db).waiting()]
        return Found(
            waiting={one.caller_id: one for one in calls if one is not None},
            placements=PlacementTable(db).all(),
            models={str(one.name) for one in ModelTable(db).all()},
            last=last_run(copy),
        )
