"""What has arrived of an HTTP/1.1 response, and of the events in its body?

No I/O here: bytes in, events out. A general client stamps a token only after its own buffering and scheduling; the
load generator needs the time of the read itself and thousands of open streams, hence these few lines of its own.
"""

from urllib.parse import SplitResult

from llmhostd.domain.errors import LlmhostdError


class PeerError(LlmhostdError):
    """The server spoke something that is not HTTP/1.1, or stopped in the middle."""


def post(url: SplitResult, path: str, body: bytes, api_key: str | None) -> bytes:
    """A whole POST request with a JSON body; the connection is not used again."""
    lines = [
        f"POST {url.path.rstrip('/')}{path} HTTP/1.1",
        f"Host: {url.netloc.rpartition('@')[2]}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Accept: text/event-stream",
        "Connection: close",
    ]
    if api_key:
        lines.append(f"Authorization: Bearer {api_key}")
    return "\r\n".join([*lines, "", ""]).encode() + body


class Response:
    """Reads one response. `feed` returns what is new of the body, transfer coding removed."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.complete = False
        self._buffer = b""
        self._left: int | None = None
        """Bytes left of the body or of the current chunk; None: until the connection closes."""
        self._chunked = False

    def feed(self, data: bytes) -> bytes:
        """Take what one read returned."""
        self._buffer += data
        if self.status is None and not self._read_head():
            return b""
        return self._read_chunks() if self._chunked else self._read_plain()

    def close(self) -> None:
        """The server closed the connection; raises PeerError where that is not the end of the body."""
        if self.status is not None and self._left is None and not self._chunked:
            self.complete = True
        if not self.complete:
            raise PeerError("the server closed the connection in the middle of its answer")

    def _read_head(self) -> bool:
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return False
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, status = first.partition(" ")
        if not version.startswith("HTTP/1.") or not status[:3].isdigit():
            raise PeerError(f"the server answered {first[:60]!r}, which is not HTTP/1.1")
        self.status = int(status[:3])
        self.headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }
        self._chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        self._left = 0 if self._chunked else self._content_length()
        self._buffer = rest
        return True

    def _content_length(self) -> int | None:
        length = self.headers.get("content-length")
        return None if length is None else _number(length.encode(), 10)

    def _read_plain(self) -> bytes:
        body, self._buffer = self._buffer, b""
        if self._left is not None:
            self._left -= len(body)
            self.complete = self._left <= 0
        return body

    def _read_chunks(self) -> bytes:
        body: list[bytes] = []
        while not self.complete:
            if self._left:
                piece, self._buffer = self._buffer[: self._left], self._buffer[self._left :]
                self._left -= len(piece)
                body.append(piece)
                if self._left:
                    break
            # A chunk's data ends with an empty line, which the next size line is read behind.
            line, end, rest = self._buffer.removeprefix(b"\r\n").partition(b"\r\n")
            if not end:
                break
            self._left, self._buffer = _number(line.partition(b";")[0], 16), rest
            self.complete = self._left == 0
        return b"".join(body)


def _number(text: bytes, base: int) -> int:
    try:
        return int(text, base)
    except ValueError:
        raise PeerError(f"the server announced a length of {text[:20]!r}, which is no number") from None


class EventLines:
    """Splits an event stream into the payloads of its `data:` lines (OpenAI servers write one line an event)."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, body: bytes) -> list[bytes]:
        """Payloads that are whole now."""
        *lines, self._buffer = (self._buffer + body).split(b"\n")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]
