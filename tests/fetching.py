"""Weights that are fetched from a `FileServer`, as a worker fetches them."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from file_server import FileServer

from llmhostd.loader.fetch import Fetch
from llmhostd.loader.range_fetch import FetchPolicy
from llmhostd.loader.remote_store import RemotePlace, add_remote
from llmhostd.loader.store_index import DATA_FILE, arrives, read_index
from llmhostd.loader.verify import verify

QUICK = FetchPolicy(fetch_retries=2, fetch_retry_wait_s=0.01, fetch_timeout_s=5.0, fetch_connections=3)


def place(files: FileServer) -> RemotePlace:
    return RemotePlace(f"{files.origin}/models/large")


def added(files: FileServer, here: Path) -> Path:
    add_remote(place(files), here / "large", QUICK)
    return here / "large"


def fetched(store: Path, policy: FetchPolicy = QUICK) -> Fetch:
    """Fetch until it is over."""
    fetch = begun(store, policy)
    while not fetch.over:
        time.sleep(0.01)
    return fetch


def begun(store: Path, policy: FetchPolicy = QUICK) -> Fetch:
    return Fetch(store, policy, read_index(store).data_bytes, lambda: None)


def until(done: Callable[[], object]) -> None:
    limit_s = time.monotonic() + 60
    while not done():
        assert time.monotonic() < limit_s
        time.sleep(0.005)


def may_write(file: Path) -> bool:
    """Whether whoever opens a file for writing now is not held by a lease."""
    try:
        os.close(os.open(file, os.O_WRONLY | os.O_NONBLOCK))
    except BlockingIOError:
        return False
    return True


def same(store: Path, root: Path) -> None:
    assert (store / DATA_FILE).read_bytes() == (root / "models" / "large" / DATA_FILE).read_bytes()
    assert not arrives(store)
    verify(store, lambda *_: None)
