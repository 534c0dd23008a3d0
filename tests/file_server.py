"""A server of static files with ranges, as any is: a real HTTP server that can misbehave on request."""

import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from loopback import Answers, listening

DATA = "weights.llmhostd"
_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
_PIECE = 1 << 16


@dataclass
class FileServer:
    """What is served, how it misbehaves, and what it was asked. Faults are of the data file only."""

    root: Path
    cut_after: list[int] = field(default_factory=list)
    """Each answer takes the next of these and breaks the connection after so many bytes."""
    flips: dict[int, int] = field(default_factory=dict)
    """At this offset one bit is wrong, in so many answers."""
    busy_answers: int = 0
    """So many are answered with 503 first."""
    ranges: bool = True
    down_after: int | None = None
    """After so many bytes in all, every connection breaks at once."""
    stuck_after: int | None = None
    """After so many bytes in all, nothing more comes until this is None, or for a minute."""
    bytes_per_s: float = float("inf")
    """Of all connections together."""
    etag: str = '"1"'
    claimed_bytes: int | None = None
    """What it says of the file's length."""
    redirect_to: str = ""
    token: str = ""
    """What the query must be, if any."""
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """(path, Range, Authorization) of every request."""
    sent_bytes: int = 0
    """Of the data file."""
    origin: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)
    free_s: float = 0.0
    """When what was sent is through."""

    @property
    def stuck(self) -> bool:
        """Whether nothing comes now."""
        return self.stuck_after is not None and self.sent_bytes > self.stuck_after

    def refused(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, bytes, dict[str, str]] | None:
        """What whoever may not have this gets: status, body, headers."""
        return None

    def data_ranges(self) -> list[str]:
        """The ranges of the data file that were asked for, but for the first byte alone."""
        return [ranged for path, ranged, _ in self.asked if path.endswith(DATA) and ranged != "bytes=0-0"]


class _Handler(Answers):
    files: FileServer

    def do_GET(self) -> None:  # noqa: N802 - as `http.server` calls it
        files, parts = self.files, urlsplit(self.path)
        ranged, path = self.headers.get("Range", ""), unquote(parts.path)
        files.asked.append((path, ranged, self.headers.get("Authorization", "")))
        if refusal := files.refused(self.command, self.path, dict(self.headers)):
            self.send(*refusal)
            return
        if files.redirect_to:
            self.send(302, b"", {"Location": files.redirect_to + self.path})
            return
        if files.token and parts.query != files.token:
            self.send(403, b"no", {})
            return
        try:
            with (files.root / path.lstrip("/")).open("rb") as file:
                if path.endswith(DATA):
                    self._send_data(file, _RANGE.fullmatch(ranged))
                else:
                    self.send(200, file.read(), {})
        except FileNotFoundError:
            self.send(404, b"not here", {})

    def _send_data(self, file: BinaryIO, ranged: "re.Match[str] | None") -> None:
        files, headers = self.files, {"ETag": self.files.etag, "Accept-Ranges": "bytes"}
        with files.lock:
            busy, files.busy_answers = files.busy_answers > 0, max(files.busy_answers - 1, 0)
        if busy:
            self.send(503, b"", {})
            return
        if not files.ranges or ranged is None:
            self.send(200, file.read(), headers)
            return
        begin, end = int(ranged[1]), int(ranged[2]) + 1
        file.seek(begin)
        body = bytearray(file.read(end - begin))
        with files.lock:
            for offset, times in files.flips.items():
                if begin <= offset < end and times and len(body) > 1:
                    files.flips[offset] -= 1
                    body[offset - begin] ^= 4
            cut = files.cut_after.pop(0) if files.cut_after and len(body) > 1 else None
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{files.claimed_bytes or os.fstat(file.fileno()).st_size}"
        self.send(206, bytes(body), headers, cut)

    def pour(self, body: bytes, status: int) -> None:
        files = self.files
        for at in range(0, len(body), _PIECE):
            piece = body[at : at + _PIECE]
            if status == HTTPStatus.PARTIAL_CONTENT:
                with files.lock:
                    files.sent_bytes += len(piece)
                    now = time.monotonic()
                    due_s = files.free_s = max(files.free_s, now) + len(piece) / files.bytes_per_s
                    down = files.down_after is not None and files.sent_bytes > files.down_after
                if down:
                    raise ConnectionAbortedError
                time.sleep(max(due_s - time.monotonic(), 0.0))
                while files.stuck and time.monotonic() < now + 60.0:
                    time.sleep(0.01)
            self.wfile.write(piece)


@contextmanager
def serving(files: FileServer) -> Iterator[FileServer]:
    """Run the server."""
    with listening(type("Handler", (_Handler,), {"files": files})) as files.origin:
        yield files
