"""How does a store behind HTTP become one here, without its weights?

Its index, and the small files that the index names, are fetched, bounded in size and held against their checksums; the
weights come when they are loaded (`loader.fetch`). Any server of static files will do that serves ranges.
"""

import os
from pathlib import Path

import httpx
import msgspec

from llmhostd.checkpoints.layout import SourceFile, StoreIndex, check
from llmhostd.domain.errors import CheckpointError, OperatorError
from llmhostd.loader.checksum import checksum
from llmhostd.loader.range_fetch import FetchPolicy, RangeFetch
from llmhostd.loader.remote_url import RemoteUrl, open_client
from llmhostd.loader.safetensors import CONFIG_FILE
from llmhostd.loader.store_directory import making
from llmhostd.loader.store_index import DATA_FILE, INDEX_FILE, MAX_INDEX_BYTES, REMOTE_FILE, Remote, is_companion_name

_MOST_COMPANIONS = 64
_MOST_COMPANION_BYTES = 256 << 20
"""Together; a large vocabulary takes 20 MB."""
_MOST_CHUNK_BYTES = 64 << 20


def add_remote(url: RemoteUrl, text: str, destination: Path, policy: FetchPolicy | None = None) -> None:
    """Make the new directory `destination` with everything of a store but its weights. `text`: the address as given.

    Raises CheckpointError naming the address and what is wrong there, OperatorError when the directory cannot be made.
    """
    policy = policy or FetchPolicy()
    with making(destination) as partial, open_client(url, policy.fetch_timeout_s, 1) as client:
        for left in partial.iterdir():
            left.unlink()
        index_bytes = _get(client, url, INDEX_FILE, MAX_INDEX_BYTES)
        index = _checked_index(index_bytes, f"{url.shown}/{INDEX_FILE}")
        ranges = RangeFetch(client, url.file(DATA_FILE), index.data_bytes, policy)
        ranges.fetch(0, memoryview(bytearray(1)), f"{url.shown}/{DATA_FILE}")
        for one in index.companions:
            content = _get(client, url, one.name, one.size_bytes)
            if len(content) != one.size_bytes or checksum(content) != one.checksum:
                raise CheckpointError(f"{url.shown}/{one.name}: has other bytes than its index says")
            (partial / one.name).write_bytes(content)
        (partial / INDEX_FILE).write_bytes(index_bytes)
        _write_remote(partial, Remote(url=text, data_bytes=index.data_bytes, etag=ranges.etag))


def _get(client: httpx.Client, url: RemoteUrl, name: str, most_bytes: int) -> bytes:
    what, content = f"{url.shown}/{name}", bytearray()
    try:
        with client.stream("GET", url.file(name)) as response:
            if response.status_code != httpx.codes.OK:
                raise CheckpointError(
                    f"{what}: the server answered {response.status_code} {response.reason_phrase};"
                    " a store made by `llmhostd models add` must lie there"
                )
            for piece in response.iter_raw():
                content += piece
                if len(content) > most_bytes:
                    raise CheckpointError(f"{what}: is larger than {most_bytes:,} bytes")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise OperatorError(f"{what}: cannot be fetched: {str(error) or type(error).__name__}") from error
    return bytes(content)


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


def _write_remote(partial: Path, remote: Remote) -> None:
    """It may hold a secret."""
    descriptor = os.open(partial / REMOTE_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(remote))
