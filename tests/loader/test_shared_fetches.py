"""Do several that want the same weights, and several places that have them, make one whole file?"""

import os
import signal
import time
from pathlib import Path

from fetching import QUICK, added, begun, fetched, place, same, until
from file_server import FileServer, serving
from served_stores import served_store

from llmhostd.loader.fetch import Fetch
from llmhostd.loader.remote_store import add_address
from llmhostd.loader.safetensors import open_checkpoint
from llmhostd.loader.store_index import read_index, read_remote


def both_midway(files: FileServer, store: Path) -> tuple[Fetch, Fetch]:
    """Begin twice: one fetches, the other follows, and no more comes for now."""
    files.stuck_after = 5_000_000
    one = begun(store)
    until(lambda: one.state.here_bytes)
    two = begun(store)
    until(lambda: two.state.here_bytes == one.state.here_bytes)
    return one, two


def test_two_that_want_it_fetch_it_once_and_both_use_it_as_it_comes(root: Path, tmp_path: Path) -> None:
    with serving(FileServer(root)) as files:
        store = added(files, tmp_path)
        data_bytes = read_index(store).data_bytes
        one, two = both_midway(files, store)
        opened = open_checkpoint(store, two)
        first = min(opened.description.tensors, key=lambda name: opened.description.tensors[name].begin)
        rows = opened.array(first)[:10].tobytes()
        assert not two.over
        files.stuck_after = None
        until(lambda: one.over and two.over)
        assert (one.state.whole, two.state.whole, two.left_bytes) == (True, True, 0)
        assert 0 < two.state.fetched_bytes < data_bytes
        assert rows == open_checkpoint(root / "models" / "large").array(first)[:10].tobytes()
        assert files.sent_bytes == data_bytes + 1
    same(store, root)


def test_whoever_follows_goes_on_when_the_other_is_killed(root: Path, tmp_path: Path) -> None:
    with serving(FileServer(root)) as files:
        store = added(files, tmp_path)
        data_bytes = read_index(store).data_bytes
        one, two = both_midway(files, store)
        came = two.state.here_bytes
        os.kill(one._child.pid, signal.SIGKILL)
        files.stuck_after = None
        told = []
        while not two.over:
            told.append(two.state.here_bytes)
            time.sleep(0.005)
        assert two.state.whole, two.state.error
        assert told == sorted(told)
        assert came > 0
        assert files.sent_bytes < 2 * data_bytes - came
    same(store, root)


def test_what_one_place_cannot_give_comes_from_the_next(root: Path, tmp_path: Path) -> None:
    with serving(FileServer(root)) as second, serving(FileServer(root)) as first:
        store = added(first, tmp_path)
        assert add_address(place(second), store, QUICK)
        assert add_address(place(second), store, QUICK), "again"
        first.down_after, first.sent_bytes = 3_000_000, 0
        second.flips = {7_000_000: 1}
        fetch = fetched(store)
        assert fetch.state.whole, fetch.state.error
        assert first.sent_bytes > 2_000_000
        assert second.sent_bytes < read_index(store).data_bytes
    same(store, root)


def test_all_places_that_fail_are_named(root: Path, tmp_path: Path) -> None:
    with serving(FileServer(root)) as second:
        with serving(FileServer(root)) as first:
            store = added(first, tmp_path)
            assert add_address(place(second), store, QUICK)
        second.flips = {4_000_000: 99}
        fetch = fetched(store)
        assert f"{first.origin}/models/large" in fetch.state.error
        assert f"{second.origin}/models/large" in fetch.state.error
        assert "wrong checksum" in fetch.state.error
        assert fetch.state.present_bytes > 0


def test_a_place_with_other_weights_is_none_of_this_store(root: Path, tmp_path: Path, tiny_models_dir: Path) -> None:
    served_store(tmp_path / "other", tiny_models_dir, seed=4)
    with serving(FileServer(root)) as first, serving(FileServer(tmp_path / "other")) as second:
        store = added(first, tmp_path)
        before = read_remote(store)
        assert not add_address(place(second), store, QUICK)
        assert read_remote(store) == before
