"""How does one file arrive whole, however often the connection breaks?

Bytes are appended to a part file, from where the last attempt stopped, and hashed as they come. The part becomes the
file only when size and checksum are right.
"""

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import httpx

from llmhostd.domain.errors import OperatorError
from llmhostd.loader.http_answer import LONGEST_WAIT_S, RETRIED_STATUS, LongerError, bounded
from llmhostd.loader.hub_listing import RemoteFile

_CHUNK_BYTES = 1 << 20


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


class CorruptError(Exception):
    """All bytes came, and they are not the file's."""


class _BrokenError(Exception):
    """An attempt ended early; another may go on from there."""


def fetch(
    client: httpx.Client,
    url: str,
    headers: Mapping[str, str],
    file: RemoteFile,
    part: Path,
    *,
    received: Callable[[int], None],
    retries: int,
    retry_wait_s: float,
) -> None:
    """Complete `part`, which may hold the beginning. `received` hears its size as it grows.

    Up to `retries` attempts in a row may bring nothing, each after twice the wait of the one before. Raises
    CorruptError (the part is gone then), OperatorError when the hub cannot be reached (the part is kept), OSError as
    the disk does.
    """
    left, wait_s = retries, retry_wait_s
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            _attempt(client, url, headers, file, part, received)
        except (_BrokenError, httpx.RequestError) as error:
            progressed = part.exists() and part.stat().st_size > before
            left, wait_s = (retries, retry_wait_s) if progressed else (left - 1, wait_s)
            if left < 0:
                raise OperatorError(
                    f"{file.name}: the connection to the hub broke ({error}); what came is kept, run again to go on"
                ) from error
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
        else:
            return


def _attempt(
    client: httpx.Client,
    url: str,
    headers: Mapping[str, str],
    file: RemoteFile,
    part: Path,
    received: Callable[[int], None],
) -> None:
    digest, have = _hash_of_part(file, part)
    with part.open("ab") as out:
        if have > file.size_bytes:
            digest, have = _restart(file, out.fileno())
        received(have)
        if have < file.size_bytes:
            ranged = {**headers, "Accept-Encoding": "identity", "Range": f"bytes={have}-"}
            with client.stream("GET", url, headers=ranged) as response:
                _check_status(response, file)
                if response.status_code == httpx.codes.OK and have:  # the range was ignored: all of it comes
                    digest, have = _restart(file, out.fileno())
                try:
                    for chunk in bounded(response, file.size_bytes - have):
                        have += len(chunk)
                        out.write(chunk)
                        digest.update(chunk)
                        received(have)
                except LongerError:
                    have = file.size_bytes + 1
        out.flush()
        os.fsync(out.fileno())
    if have < file.size_bytes:
        raise _BrokenError(f"{have} of {file.size_bytes} bytes came")
    if have > file.size_bytes or digest.hexdigest() != file.digest:
        part.unlink()
        raise CorruptError


def _hash_of_part(file: RemoteFile, part: Path) -> tuple[_Hash, int]:
    digest, have = _new_hash(file), 0
    if part.exists():
        with part.open("rb") as stored:
            while chunk := stored.read(_CHUNK_BYTES):
                digest.update(chunk)
                have += len(chunk)
    return digest, have


def _new_hash(file: RemoteFile) -> _Hash:
    if file.algorithm == "sha256":
        return hashlib.sha256()
    digest = hashlib.sha1(usedforsecurity=False)  # git's own name for a content
    digest.update(f"blob {file.size_bytes}\0".encode())
    return digest


def _restart(file: RemoteFile, descriptor: int) -> tuple[_Hash, int]:
    os.ftruncate(descriptor, 0)
    return _new_hash(file), 0


def _check_status(response: httpx.Response, file: RemoteFile) -> None:
    status = response.status_code
    if status in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
        return
    if status in RETRIED_STATUS:
        raise _BrokenError(f"status {status}")
    raise OperatorError(f"{file.name}: the hub answered {status} {response.reason_phrase}")
