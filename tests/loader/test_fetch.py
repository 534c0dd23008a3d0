"""Do weights come over a network that breaks, lies and hangs, and does nothing that came get lost?"""

import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
from fetching import QUICK, added, begun, fetched, may_write, same, until
from file_server import DATA, FileServer, serving
from served_stores import CHUNK_BYTES, served_store

from llmhostd.domain.errors import CallerError, CheckpointError, LlmhostdError
from llmhostd.loader.page_cache import where_weights_lie
from llmhostd.loader.range_fetch import FetchPolicy
from llmhostd.loader.remote_store import RemotePlace, add_remote
from llmhostd.loader.remote_url import parse_url
from llmhostd.loader.safetensors import describe, open_checkpoint
from llmhostd.loader.store_index import DATA_FILE, INDEX_FILE, REMOTE_FILE, arrives, read_index
from llmhostd.loader.verify import verify


def test_what_is_added_is_all_but_the_weights_which_come_when_they_are_asked_for(root: Path, tmp_path: Path) -> None:
    with serving(FileServer(root)) as files:
        store = added(files, tmp_path)
        assert describe(store).tensors.keys() == describe(root / "models" / "large").tensors.keys()
        assert files.sent_bytes == 1
        data_bytes = read_index(store).data_bytes
        lies = where_weights_lie(store)
        assert lies is not None
        assert (lies.remote_bytes, lies.total_bytes) == (data_bytes, data_bytes)
        fetch = fetched(store)
        assert fetch.state.whole, fetch.state.error
        assert (fetch.state.fetched_bytes, fetch.left_bytes) == (data_bytes, 0)
        assert files.sent_bytes == data_bytes + 1
    same(store, root)
    lies = where_weights_lie(store)
    assert lies is not None
    assert lies.remote_bytes == 0


@pytest.mark.usefixtures("leases")
def test_tensors_can_be_used_while_later_ones_are_on_the_wire(root: Path, tmp_path: Path) -> None:
    with serving(FileServer(root)) as files:
        store = added(files, tmp_path)
        files.stuck_after = 5_000_000
        fetch = begun(store)
        until(lambda: fetch.state.here_bytes)
        opened, whole = open_checkpoint(store, fetch), open_checkpoint(root / "models" / "large")
        names = sorted(opened.description.tensors, key=lambda name: opened.description.tensors[name].begin)
        first = opened.array(names[0]).tobytes()
        assert not fetch.state.whole
        assert fetch.here_s is None
        files.stuck_after = None
        for name in names:
            assert opened.array(name).tobytes() == whole.array(name).tobytes()
        assert first == whole.array(names[0]).tobytes()
    until(lambda: fetch.over)
    same(store, root)
    # Nobody of us writes any more: from now on it is held against others.
    until(lambda: not may_write(store / DATA_FILE))
    os.truncate(store / DATA_FILE, 100)
    assert all(opened.array(name).tobytes() == whole.array(name).tobytes() for name in names)


@pytest.mark.parametrize(
    "fault",
    [
        {"cut_after": [100, 200_000, 0, 70_000]},
        {"busy_answers": 2},
        {"flips": {5_000_000: 1}},
        {"cut_after": [1], "flips": {7_000_000: 1}, "etag": '"2"'},
    ],
    ids=["cut", "busy", "flipped once", "all of it"],
)
def test_what_passes_is_tried_again_from_where_it_was(root: Path, tmp_path: Path, fault: dict[str, object]) -> None:
    with serving(FileServer(root)) as files:
        store = added(files, tmp_path)
        for name, value in fault.items():
            setattr(files, name, value)
        fetch = fetched(store)
        assert fetch.state.whole, fetch.state.error
    same(store, root)
    again = sum(len(one) for one in files.data_ranges()) and files.sent_bytes - read_index(store).data_bytes
    assert again <= CHUNK_BYTES + (1 << 20)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"ranges": False}, "serves ranges"),
        ({"busy_answers": 1000}, "the server answered 503"),
        ({"flips": {4_000_000: 99}}, "a wrong checksum: it is damaged there"),
        ({"flips": {4_000_000: 99}, "etag": '"2"'}, r'replaced there \(ETag "1", now "2"\)'),
        ({"claimed_bytes": 77}, "has 77 bytes"),
        ({"down_after": 5_000_000}, "chunk"),
        ({"token": "other"}, "403"),
    ],
    ids=["no ranges", "busy", "damaged", "replaced", "another length", "dies midway", "forbidden"],
)
def test_what_does_not_pass_is_named_and_nothing_is_lost(
    root: Path, tmp_path: Path, fault: dict[str, object], says: str
) -> None:
    with serving(FileServer(root)) as files:
        store = added(files, tmp_path)
        healthy = {name: getattr(files, name) for name in fault}
        for name, value in fault.items():
            setattr(files, name, value)
        fetch = fetched(store)
        assert fetch.failed
        with pytest.raises(CheckpointError, match=says) as caught:
            fetch.wait(read_index(store).data_bytes)
        assert f"{files.origin}/models/large/{DATA}: block `" in str(caught.value)
        assert ", chunk " in str(caught.value)
        assert arrives(store)
        with pytest.raises(CheckpointError, match="not here yet"):
            verify(store, lambda *_: None)
        for name, value in healthy.items():
            setattr(files, name, value)
        before = fetch.state.present_bytes
        fetch = fetched(store)
        assert fetch.state.whole, fetch.state.error
        assert fetch.state.fetched_bytes <= read_index(store).data_bytes - before
    same(store, root)


def test_a_stopped_or_killed_fetch_is_taken_up_where_it_was(root: Path, tmp_path: Path) -> None:
    with serving(FileServer(root)) as files:
        store = added(files, tmp_path)
        data_bytes = read_index(store).data_bytes
        files.bytes_per_s = 8 * CHUNK_BYTES
        fetch = begun(store)
        until(lambda: fetch.state.here_bytes)
        began_s = time.monotonic()
        fetch.stop("nobody wants it")
        with pytest.raises(CheckpointError, match="nobody wants it"):
            fetch.wait(data_bytes)
        assert time.monotonic() - began_s < 2.0
        came = fetch.state.present_bytes
        second = begun(store)
        until(lambda: second.state.present_bytes > came)
        os.kill(second._child.pid, signal.SIGKILL)
        with pytest.raises(CheckpointError, match="ended with status -9"):
            second.wait(data_bytes)
        files.bytes_per_s = float("inf")
        third = fetched(store)
        assert third.state.whole
        assert third.state.fetched_bytes <= data_bytes - came
    same(store, root)


def test_bytes_that_rot_on_the_disk_before_it_is_whole_are_fetched_again(root: Path, tmp_path: Path) -> None:
    with serving(FileServer(root)) as files:
        store = added(files, tmp_path)
        files.down_after = 3 * CHUNK_BYTES
        assert fetched(store).failed
        with next(store.glob("*.arriving")).open("r+b") as file:
            file.seek(1000)
            byte = file.read(1)
            file.seek(1000)
            file.write(bytes([byte[0] ^ 1]))
        files.down_after = None
        assert fetched(store).state.whole
    same(store, root)


def test_a_full_disk_is_said_before_anything_comes(root: Path, tmp_path: Path) -> None:
    with serving(FileServer(root)) as files:
        store = added(files, tmp_path)
        fetch = fetched(store, FetchPolicy(fetch_spare_bytes=1 << 60))
        assert "more bytes are to come" in fetch.state.error
        assert files.sent_bytes == 1


def test_a_network_that_hangs_is_given_up_and_can_be_stopped_before(root: Path, tmp_path: Path) -> None:
    with serving(FileServer(root)) as files:
        store = added(files, tmp_path)
        files.bytes_per_s = 1.0
        fetch = begun(store)
        threading.Timer(0.3, fetch.stop, ["unloaded"]).start()
        with pytest.raises(CheckpointError, match="unloaded"):
            fetch.wait(1)
        fetch = fetched(store, FetchPolicy(fetch_retries=0, fetch_timeout_s=0.2))
        assert "does not answer in time" in fetch.state.error


def test_memory_is_bounded_by_the_connections(tmp_path: Path, tiny_models_dir: Path) -> None:
    served_store(tmp_path / "served", tiny_models_dir, vocab_size=50000)
    with serving(FileServer(tmp_path / "served")) as files:
        store = added(files, tmp_path)
        files.bytes_per_s = 100e6
        fetch, peak_bytes = begun(store, FetchPolicy(fetch_connections=2)), 0
        while not fetch.over:
            peak_bytes = max(peak_bytes, anonymous_bytes(fetch._child.pid))
            time.sleep(0.02)
        assert fetch.state.whole
        assert 1 << 20 < peak_bytes < read_index(store).data_bytes


def anonymous_bytes(pid: int) -> int:
    """What a process has for itself."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    return 1024 * int(found[1]) if found else 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("file:///etc/passwd", "file: is not read"),
        ("ftp://host/x", "ftp: is not read"),
        ("http://host", "needs a host and the path"),
        ("https:///x/y", "needs a host"),
        ("https://host:99999/x", "cannot be"),
        ("https://host/a b", "spaces"),
        ("https://host/" + "x" * 5000, "too long"),
    ],
)
def test_addresses_that_are_none_are_refused(text: str, says: str) -> None:
    with pytest.raises(CallerError, match=says):
        parse_url(text)


def test_secrets_reach_the_server_and_nobody_else(root: Path, tmp_path: Path) -> None:
    with serving(FileServer(root, token="sig=s3cret")) as files:
        text = f"{files.origin.replace('//', '//me:pa55@')}/models/large?sig=s3cret"
        url = parse_url(text)
        add_remote(RemotePlace(text), tmp_path / "large", QUICK)
        assert (tmp_path / "large" / f"{DATA}.remote.json").stat().st_mode & 0o777 == 0o600
        files.token = "sig=another"
        failed = fetched(tmp_path / "large")
        assert "403" in failed.state.error
        assert not any(secret in failed.state.error + url.shown + repr(failed.state) for secret in ("s3cret", "pa55"))
        assert {authorization for *_, authorization in files.asked} == {"Basic bWU6cGE1NQ=="}
        files.token = "sig=s3cret"
        assert fetched(tmp_path / "large").state.whole


def test_credentials_do_not_follow_to_another_host_and_redirects_end(root: Path, tmp_path: Path) -> None:
    with serving(FileServer(root)) as other, serving(FileServer(root)) as files:
        files.redirect_to = other.origin.replace("127.0.0.1", "localhost")
        text = f"{files.origin.replace('//', '//me:pa55@')}/models/large"
        add_remote(RemotePlace(text), tmp_path / "large", QUICK)
        assert fetched(tmp_path / "large").state.whole
        assert {authorization for *_, authorization in other.asked} == {""}
        files.redirect_to = files.origin
        with pytest.raises(LlmhostdError, match="redirects"):
            add_remote(RemotePlace(text), tmp_path / "again", QUICK)
    assert not (tmp_path / "again").exists()


def test_where_weights_come_from_is_named_when_it_cannot_be_told(root: Path, tmp_path: Path) -> None:
    with serving(FileServer(root)) as files:
        store = added(files, tmp_path)
    assert describe(store).parameters
    (store / REMOTE_FILE).write_text("{")
    with pytest.raises(CheckpointError, match=f"{store / REMOTE_FILE}: does not say where weights come from"):
        describe(store)


@pytest.mark.parametrize("damage", ["companion", "name", "old", "index", "large", "missing"])
def test_an_index_is_not_trusted(root: Path, tmp_path: Path, damage: str) -> None:
    served = tmp_path / "served" / "models" / "large"
    served.mkdir(parents=True)
    for file in (root / "models" / "large").iterdir():
        if file.name != INDEX_FILE:
            (served / file.name).symlink_to(file)
    index = (root / "models" / "large" / INDEX_FILE).read_text()
    changed = {
        "companion": index,
        "name": index.replace('"config.json"', '"../config.json"'),
        "old": index.replace('"companions"', '"others"'),
        "index": index[: len(index) // 2],
        "large": index.replace('"chunk_bytes":262144', '"chunk_bytes":262144000'),
        "missing": index,
    }[damage]
    (served / INDEX_FILE).write_text(changed)
    if damage == "companion":
        (served / "config.json").unlink()
        (served / "config.json").write_text("{}")
    if damage == "missing":
        (served / DATA_FILE).unlink()
    with serving(FileServer(tmp_path / "served")) as files, pytest.raises(LlmhostdError, match=files.origin):
        added(files, tmp_path)
    assert not list(tmp_path.glob("*large*"))
