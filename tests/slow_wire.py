"""A wire between a client and a server that is as slow as it is told to be."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class Wire:
    """Both ends, and how fast bytes come from the server."""

    to: tuple[str, int]
    bytes_per_s: float = float("inf")
    port: int = 0
    came_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    free_s: float = 0.0

    def carry(self, near: socket.socket) -> None:
        """Connect one client; whatever breaks on one side breaks on the other."""
        with near, suppress(OSError), socket.create_connection(self.to) as far:
            threading.Thread(target=_copy, args=(near, far), daemon=True).start()
            while piece := far.recv(1 << 15):
                with self.lock:
                    self.came_bytes += len(piece)
                    due_s = self.free_s = max(self.free_s, time.monotonic()) + len(piece) / self.bytes_per_s
                time.sleep(max(due_s - time.monotonic(), 0.0))
                near.sendall(piece)


def _copy(near: socket.socket, far: socket.socket) -> None:
    with suppress(OSError):
        while piece := near.recv(1 << 15):
            far.sendall(piece)
    with suppress(OSError):
        far.shutdown(socket.SHUT_RDWR)


@contextmanager
def slow_wire(url: str) -> Iterator[Wire]:
    """Listen on a free port of the loopback interface for a server at `http://HOST:PORT`."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        wire = Wire((host, int(port)), port=listener.getsockname()[1])

        def listen() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=wire.carry, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=listen, daemon=True).start()
        try:
            yield wire
        finally:
            listener.shutdown(socket.SHUT_RDWR)
