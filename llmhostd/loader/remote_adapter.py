"""How does an adapter elsewhere become one here? It is a few MB: all of it comes at once."""

from pathlib import Path

from llmhostd.domain.errors import CheckpointError
from llmhostd.loader.adapter import CONFIG_FILE, WEIGHTS_FILE
from llmhostd.loader.adapter_copy import COPIED
from llmhostd.loader.checksum import checksum
from llmhostd.loader.range_fetch import FetchPolicy
from llmhostd.loader.remote_file import NotThereError, get_tagged
from llmhostd.loader.remote_store import RemotePlace
from llmhostd.loader.store_directory import making

_MOST_WEIGHT_BYTES = 2 << 30
_MOST_OTHER_BYTES = 64 << 20
_NEEDED = (CONFIG_FILE, WEIGHTS_FILE)


def add_remote_adapter(place: RemotePlace, destination: Path, policy: FetchPolicy) -> None:
    """Make the new directory `destination` with an adapter's files. What a peer sends is held against its checksums.

    Raises as `remote_store.add_remote`.
    """
    url = place.url
    with making(destination) as partial, place.open(policy) as there:
        for left in partial.iterdir():
            left.unlink()
        for name in COPIED:
            most_bytes = _MOST_WEIGHT_BYTES if name == WEIGHTS_FILE else _MOST_OTHER_BYTES
            try:
                content, etag = get_tagged(there, url, name, most_bytes, policy)
            except NotThereError:
                if name in _NEEDED:
                    raise
                continue
            if url.of_peer and etag != f'"{checksum(content)}"':
                raise CheckpointError(f"{url.shown}/{name}: has other bytes than the peer says")
            (partial / name).write_bytes(content)
