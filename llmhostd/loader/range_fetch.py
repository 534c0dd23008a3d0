"""How does one range of a file come over HTTP, however often the connection breaks?

Into memory, from where the last attempt stopped. Whoever asked holds it against its checksum before anything is done
with it.
"""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx

from llmhostd.domain.errors import CheckpointError
from llmhostd.loader.http_answer import LONGEST_WAIT_S, RETRIED_STATUS, said

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_MOST_BYTES = 64 << 10
"""What is taken in at once; whoever stops waits for no more than that."""


@dataclass(frozen=True, slots=True)
class FetchPolicy:
    """How weights are fetched from elsewhere: a web server, a peer, a bucket, a hub."""

    fetch_connections: int = 8
    """Connections at a time; each holds one chunk (8 MiB) in memory."""
    fetch_retries: int = 4
    """Attempts in a row that may bring nothing before a load, or a pull, fails (what came is kept)."""
    fetch_retry_wait_s: float = 0.5
    """Seconds before the first of them; before each further one twice as long."""
    fetch_timeout_s: float = 10.0
    """Seconds without a byte after which a connection counts as broken."""
    fetch_spare_bytes: int = 256 * 1024**2
    """Disk space that weights which are fetched leave free."""
    s3_endpoint: str = ""
    """Address of a server that speaks S3 (MinIO, Ceph) for `models add s3://BUCKET/PATH/NAME`; empty:
    $AWS_ENDPOINT_URL_S3, $AWS_ENDPOINT_URL, or Amazon's."""
    s3_region: str = ""
    """Its region; empty: $AWS_REGION, $AWS_DEFAULT_REGION, that of the profile, or us-east-1."""


class StoppedError(Exception):
    """Nobody wants it any more."""


class _BrokenError(Exception):
    """An attempt ended early; another may go on from there."""


class RangeFetch:
    """Fetches ranges of one file that must not change meanwhile."""

    def __init__(
        self,
        client: httpx.Client,
        address: str,
        file_bytes: int,
        policy: FetchPolicy,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """`address` may hold a secret: no error says it."""
        self._client, self._address, self._file_bytes = client, address, file_bytes
        self._policy, self._stopped = policy, stopped
        self.etag = ""
        """As the last answer had it; servers may have none."""
        self.coming_bytes = 0
        """What has come of the range that is being fetched."""

    def fetch(self, begin: int, into: memoryview, what: str) -> None:
        """Fill `into` with the bytes from `begin` on.

        Raises CheckpointError beginning with `what` when the server does not have them, and StoppedError.
        """
        filled, left, wait_s = 0, self._policy.fetch_retries, self._policy.fetch_retry_wait_s
        while filled < len(into):
            before = filled
            try:
                for piece in self._attempt(begin + filled, begin + len(into), what):
                    into[filled : filled + len(piece)] = piece
                    filled += len(piece)
                    self.coming_bytes = filled
            except (_BrokenError, httpx.TransportError) as error:
                if filled > before:
                    left, wait_s = self._policy.fetch_retries, self._policy.fetch_retry_wait_s
                    continue
                if not left:
                    raise CheckpointError(
                        f"{what}: {_spoken(error)}; tried {self._policy.fetch_retries + 1} times"
                    ) from error
                left -= 1
                self._pause(wait_s)
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            except (httpx.TooManyRedirects, httpx.InvalidURL) as error:
                raise CheckpointError(f"{what}: the server leads elsewhere too often, or nowhere") from error

    def _attempt(self, begin: int, end: int, what: str) -> Iterator[memoryview | bytes]:
        headers = {"Range": f"bytes={begin}-{end - 1}"}
        with self._client.stream("GET", self._address, headers=headers) as response:
            self._check(response, begin, what)
            self.etag = response.headers.get("ETag", "")
            left = end - begin
            for piece in response.iter_raw(_MOST_BYTES):
                if self._stopped():
                    raise StoppedError
                yield piece[:left]
                left -= len(piece)
                if left <= 0:
                    return
        raise _BrokenError(f"the connection ended {left} bytes too early")

    def _check(self, response: httpx.Response, begin: int, what: str) -> None:
        status = response.status_code
        if status in RETRIED_STATUS:
            raise _BrokenError(said(response))
        if status == httpx.codes.OK:
            raise CheckpointError(f"{what}: the server answered with the whole file; it must be one that serves ranges")
        if status == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise CheckpointError(
                f"{what}: the file there is shorter by now: it was replaced; remove the model and add it again"
            )
        if status != httpx.codes.PARTIAL_CONTENT:
            raise CheckpointError(f"{what}: {said(response)}")
        found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if found is None or int(found[1]) != begin:
            raise CheckpointError(f"{what}: the server answered with another range than was asked for")
        if found[3] not in ("*", str(self._file_bytes)):
            raise CheckpointError(
                f"{what}: the file there has {found[3]} bytes, not {self._file_bytes}: it was replaced;"
                " remove the model and add it again"
            )

    def _pause(self, wait_s: float) -> None:
        until_s = time.monotonic() + wait_s
        while (left_s := until_s - time.monotonic()) > 0:
            if self._stopped():
                raise StoppedError
            time.sleep(min(left_s, 0.1))


def _spoken(error: Exception) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "the server does not answer in time"
    return str(error) or type(error).__name__
