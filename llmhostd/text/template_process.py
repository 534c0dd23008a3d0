"""How is an untrusted template kept at arm's length?

`TemplateProcess` owns one child (`template_child`), started on the first rendering and again whenever a template took
it down. A rendering costs a round trip over a pipe (well below 1 ms); a bomb costs its own request and a restart.
"""

import json
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TemplatePolicy:
    """What a chat template may use."""

    template_cpu_s: float = 2.0
    """CPU seconds for one rendering; honest templates need milliseconds."""
    template_memory_bytes: int = 512 * 1024**2
    """Address space of the process that renders all templates."""
    template_max_chars: int = 4_000_000
    """Longest text that a template may write."""
    template_wait_s: float = 30.0
    """Seconds of wall clock after which a rendering is given up, whatever it waits for."""


class RenderingStoppedError(Exception):
    """A rendering crossed a limit and its process was ended. The text says which."""


class TemplateProcess:
    """Renders templates in a child process. Thread-safe; one rendering at a time."""

    def __init__(self, policy: TemplatePolicy | None = None) -> None:
        self._policy = policy or TemplatePolicy()
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def render(self, template: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Return what `template_child.answer` does. Raises RenderingStoppedError."""
        request = {"template": template, "variables": variables, "max_chars": self._policy.template_max_chars}
        payload = json.dumps(request).encode()
        frame = struct.pack("<I", len(payload)) + payload
        with self._lock:
            if self._child is None or self._child.poll() is not None:
                self._child = self._start()
            try:
                reply = self._exchange(self._child, frame)
            except RenderingStoppedError:
                self._stop()
                raise
        answer: dict[str, Any] = json.loads(reply)
        return answer

    @property
    def child_pid(self) -> int | None:
        """The process to charge for it; None before the first rendering and after a bomb."""
        return self._child.pid if self._child is not None else None

    def start(self) -> None:
        """Start the child now, so that the first chat does not wait for it."""
        with self._lock:
            if self._child is None or self._child.poll() is not None:
                self._child = self._start()

    def close(self) -> None:
        """End the child. A later rendering would start another."""
        with self._lock:
            self._stop()

    def _start(self) -> subprocess.Popen[bytes]:
        limits = [str(self._policy.template_cpu_s), str(self._policy.template_memory_bytes)]
        return subprocess.Popen(
            [sys.executable, "-I", "-m", "llmhostd.text.template_child", *limits],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )

    def _stop(self) -> None:
        if self._child is None:
            return
        self._child.kill()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()
        self._child.wait()
        self._child = None

    def _exchange(self, child: subprocess.Popen[bytes], frame: bytes) -> bytes:
        assert child.stdin is not None and child.stdout is not None  # noqa: S101 - both are pipes
        until_s = time.monotonic() + self._policy.template_wait_s
        try:
            _write_all(child.stdin.fileno(), frame, until_s)
            (length,) = struct.unpack("<I", _read_exactly(child.stdout.fileno(), 4, until_s))
            return _read_exactly(child.stdout.fileno(), length, until_s)
        except (BrokenPipeError, EOFError) as error:
            raise RenderingStoppedError(self._why_it_died(child)) from error
        except TimeoutError as error:
            raise RenderingStoppedError(f"it took more than {self._policy.template_wait_s:g} s") from error

    def _why_it_died(self, child: subprocess.Popen[bytes]) -> str:
        status = child.wait()
        if status == -signal.SIGPROF:
            return f"it used more than {self._policy.template_cpu_s:g} s of CPU time"
        return f"its process ended with status {status}"


def _write_all(descriptor: int, data: bytes, until_s: float) -> None:
    left = memoryview(data)
    while left:
        _wait(descriptor, select.POLLOUT, until_s)
        left = left[os.write(descriptor, left[: select.PIPE_BUF]) :]


def _read_exactly(descriptor: int, size: int, until_s: float) -> bytes:
    pieces = []
    while size > 0:
        _wait(descriptor, select.POLLIN, until_s)
        piece = os.read(descriptor, min(size, 1 << 16))
        if not piece:
            raise EOFError
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _wait(descriptor: int, what: int, until_s: float) -> None:
    poll = select.poll()
    poll.register(descriptor, what)
    if not poll.poll(max(until_s - time.monotonic(), 0.0) * 1000):
        raise TimeoutError
