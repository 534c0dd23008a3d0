"""How does a store elsewhere become one here, without its weights?

Its index, and the small files that the index names, are fetched, bounded in size and held against their checksums; the
weights come when they are loaded (`loader.fetch`). Any server of static files will do that serves ranges, a bucket, or
another daemon. A store that several places have is fetched from the first of them that answers.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from llmhostd.checkpoints.layout import SourceFile, StoreIndex, check
from llmhostd.domain.errors import CheckpointError, OperatorError
from llmhostd.loader.checksum import checksum
from llmhostd.loader.range_fetch import FetchPolicy, RangeFetch
from llmhostd.loader.remote_directory import RemoteDirectory, open_directory
from llmhostd.loader.remote_file import get
from llmhostd.loader.remote_url import RemoteUrl, parse_url
from llmhostd.loader.safetensors import CONFIG_FILE
from llmhostd.loader.store_directory import making
from llmhostd.loader.store_index import (
    DATA_FILE,
    INDEX_FILE,
    MAX_INDEX_BYTES,
    REMOTE_FILE,
    Address,
    Remote,
    is_companion_name,
    read_index,
    read_remote,
)

_MOST_COMPANIONS = 64
_MOST_COMPANION_BYTES = 256 << 20
"""Together; a large vocabulary takes 20 MB."""
_MOST_CHUNK_BYTES = 64 << 20


@dataclass(frozen=True)
class RemotePlace:
    """Where a store lies elsewhere: its address as it was given, and what a peer is opened with."""

    text: str
    key: str = ""

    @property
    def url(self) -> RemoteUrl:
        """Raises CallerError for what is no address."""
        return parse_url(self.text)

    def address(self, etag: str) -> Address:
        """As it is noted beside a store. A key that is no peer's is not."""
        return Address(url=self.text, etag=etag, key=self.key if self.url.of_peer else "")

    def open(self, policy: FetchPolicy) -> RemoteDirectory:
        """Raises OperatorError."""
        return open_directory(self.url, self.key, policy, 1)


def add_remote(place: RemotePlace, destination: Path, policy: FetchPolicy) -> None:
    """Make the new directory `destination` with everything of a store but its weights.

    Raises CheckpointError naming the address and what is wrong there (NotThereError: there is no store), OperatorError
    when it cannot be asked, or the directory cannot be made.
    """
    with making(destination) as partial, place.open(policy) as there:
        for left in partial.iterdir():
            left.unlink()
        index_bytes, index = _index(there, place.url, policy)
        etag = _etag(there, place.url, index, policy)
        for one in index.companions:
            content = get(there, place.url, one.name, one.size_bytes, policy)
            if len(content) != one.size_bytes or checksum(content) != one.checksum:
                raise CheckpointError(f"{place.url.shown}/{one.name}: has other bytes than its index says")
            (partial / one.name).write_bytes(content)
        (partial / INDEX_FILE).write_bytes(index_bytes)
        remote = Remote(data_bytes=index.data_bytes, addresses=(place.address(etag),))
        _write_remote(partial / REMOTE_FILE, remote)


def add_address(place: RemotePlace, store: Path, policy: FetchPolicy) -> bool:
    """Note one more place that has a store's weights; one that is known gets its new secret. Returns whether it does.

    Raises as above; CheckpointError for a store that was made here, too.
    """
    known = read_remote(store)
    if known is None:
        raise CheckpointError(f"{store}: was made here; there is nothing to fetch")
    with place.open(policy) as there:
        _, index = _index(there, place.url, policy)
        if _content(index) != _content(read_index(store)):
            return False
        address = place.address(_etag(there, place.url, index, policy))
    shown = [parse_url(one.url).shown for one in known.addresses]
    addresses = list(known.addresses)
    if place.url.shown in shown:
        addresses[shown.index(place.url.shown)] = address
    else:
        addresses.append(address)
    beside = store / f"{REMOTE_FILE}.new"
    beside.unlink(missing_ok=True)
    _write_remote(beside, msgspec.structs.replace(known, addresses=tuple(addresses)))
    beside.rename(store / REMOTE_FILE)
    return True


def _content(index: StoreIndex) -> StoreIndex:
    """What is in a store, whatever it was made from."""
    return msgspec.structs.replace(index, source=())


def _index(there: RemoteDirectory, url: RemoteUrl, policy: FetchPolicy) -> tuple[bytes, StoreIndex]:
    content = get(there, url, INDEX_FILE, MAX_INDEX_BYTES, policy)
    return content, _checked_index(content, f"{url.shown}/{INDEX_FILE}")


def _etag(there: RemoteDirectory, url: RemoteUrl, index: StoreIndex, policy: FetchPolicy) -> str:
    """Ask for one byte of the weights, so that it is known now that ranges are served."""
    ranges = RangeFetch(there.client, there.address(DATA_FILE), index.data_bytes, policy)
    ranges.fetch(0, memoryview(bytearray(1)), f"{url.shown}/{DATA_FILE}")
    return ranges.etag


def _checked_index(content: bytes, where: str) -> StoreIndex:
    try:
        index = msgspec.json.decode(content, type=StoreIndex)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{where}: is not an index of weights: {error}") from error
    check(index, where, index.data_bytes)
    if index.chunk_bytes > _MOST_CHUNK_BYTES:
        raise CheckpointError(f"{where}: `chunk_bytes` is {index.chunk_bytes}, more than {_MOST_CHUNK_BYTES}")
    if CONFIG_FILE not in [one.name for one in index.companions]:
        raise CheckpointError(
            f"{where}: names no {CONFIG_FILE} beside the weights: make the store again, with this version"
        )
    total = sum(one.size_bytes for one in index.companions)
    if len(index.companions) > _MOST_COMPANIONS or total > _MOST_COMPANION_BYTES:
        raise CheckpointError(f"{where}: names {len(index.companions)} files of {total:,} bytes beside the weights")
    for one in index.companions:
        _check_name(one, where)
    return index


def _check_name(one: SourceFile, where: str) -> None:
    if not is_companion_name(one.name) or one.size_bytes < 0:
        raise CheckpointError(f"{where}: names {one.name[:100]!r}, which is no file beside the weights")


def _write_remote(file: Path, remote: Remote) -> None:
    """It may hold a secret."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(msgspec.json.encode(remote))
            opened.flush()
            os.fsync(descriptor)
    except OSError as error:
        raise OperatorError(f"{file}: cannot be written: {error.strerror}") from error
