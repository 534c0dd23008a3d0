"""Can another host have the files that make up a store, by ranges, and nothing else?"""

import hashlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from daemon_process import DaemonProcess
from hypothesis import given
from hypothesis import strategies as st
from served_stores import served_store

from llmhostd.api.ranges import wanted
from llmhostd.loader.convert import convert
from llmhostd.loader.store_index import DATA_FILE, INDEX_FILE, read_index

KEY = "a-long-and-random-key"
SETTINGS = f"[http]\napi_keys = ['{hashlib.sha256(KEY.encode()).hexdigest()}']\nmax_store_transfers = 2\n"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Path:
    store = tmp_path_factory.mktemp("stores") / "kept"
    convert(tiny_models_dir / "tiny-llama", store)
    return store


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Path:
    """More than the buffers of a connection hold."""
    return served_store(tmp_path_factory.mktemp("large"), tiny_models_dir, vocab_size=12000)


@pytest.fixture(scope="module")
def peer(
    store: Path, large: Path, tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path
) -> Iterator[DaemonProcess]:
    linked = tmp_path_factory.mktemp("linked") / "linked"
    linked.mkdir()
    for file in store.iterdir():
        (linked / file.name).write_bytes(file.read_bytes())
    (linked / "config.json").rename(linked / "elsewhere")
    (linked / "config.json").symlink_to(linked / "elsewhere")
    models = [store, large, linked, tiny_models_dir / "tiny-llama"]
    with DaemonProcess(tmp_path_factory.mktemp("peer"), models, settings=SETTINGS) as daemon:
        daemon.http.headers["Authorization"] = f"Bearer {KEY}"
        yield daemon


def get(peer: DaemonProcess, file: str, model: str = "kept", method: str = "GET", **headers: str) -> httpx.Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return peer.http.request(method, f"/api/v1/models/{model}/store/{file}", headers=names)


def test_all_that_makes_it_up_can_be_had_whole(peer: DaemonProcess, store: Path) -> None:
    names = [INDEX_FILE, DATA_FILE, *(one.name for one in read_index(store).companions)]
    assert "config.json" in names
    for name in names:
        answer, head = get(peer, name), get(peer, name, method="HEAD")
        assert answer.status_code == head.status_code == 200
        assert answer.content == (store / name).read_bytes()
        assert head.content == b""
        for header in ("etag", "content-length", "accept-ranges"):
            assert answer.headers[header] == head.headers[header]
    assert len({get(peer, name, method="HEAD").headers["etag"] for name in names}) == len(names)


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        ("bytes=0-0", slice(0, 1)),
        ("bytes=1000-300999", slice(1000, 301000)),
        ("bytes=5-", slice(5, None)),
        ("bytes=-7", slice(-7, None)),
        ("bytes=9-99999999999", slice(9, None)),
        ("BYTES=2-3", slice(2, 4)),
    ],
)
def test_one_range_is_that_range(peer: DaemonProcess, store: Path, asked: str, part: slice) -> None:
    content = (store / DATA_FILE).read_bytes()
    answer = get(peer, DATA_FILE, Range=asked)
    begin, end, _ = part.indices(len(content))
    assert answer.status_code == 206
    assert answer.headers["content-range"] == f"bytes {begin}-{end - 1}/{len(content)}"
    assert answer.content == content[part]
    assert get(peer, DATA_FILE, Range=asked, If_Range=answer.headers["etag"]).content == content[part]


@pytest.mark.parametrize("asked", ["bytes=0-1,4-5", "bytes=-", "bytes=7-3", "lines=0-1", "bytes=a-b", "bytes=0-1 x"])
def test_what_is_no_range_is_answered_with_all(peer: DaemonProcess, store: Path, asked: str) -> None:
    answer = get(peer, DATA_FILE, Range=asked)
    assert (answer.status_code, len(answer.content)) == (200, (store / DATA_FILE).stat().st_size)


def test_a_range_of_another_version_is_all_of_this_one(peer: DaemonProcess, store: Path) -> None:
    for other in ('"other"', "Wed, 21 Oct 2015 07:28:00 GMT", f"W/{get(peer, 'config.json').headers['etag']}"):
        assert get(peer, "config.json", Range="bytes=0-0", If_Range=other).status_code == 200


@pytest.mark.parametrize("asked", ["bytes=999999999-", "bytes=-0"])
def test_bytes_that_are_not_there(peer: DaemonProcess, store: Path, asked: str) -> None:
    answer = get(peer, DATA_FILE, Range=asked)
    assert (answer.status_code, answer.content) == (416, b"")
    assert answer.headers["content-range"] == f"bytes */{(store / DATA_FILE).stat().st_size}"


@given(st.integers(0, 50), st.one_of(st.none(), st.integers(0, 60)), st.one_of(st.none(), st.integers(0, 60)))
def test_a_range_is_what_slicing_says(size: int, first: int | None, last: int | None) -> None:
    content = bytes(range(size))
    answer = wanted(f"bytes={'' if first is None else first}-{'' if last is None else last}", "", size, "e")
    if (first is None and last is None) or (first is not None and last is not None and last < first):
        expected = (200, content)
    elif first is None:
        assert last is not None
        expected = (206, content[max(size - last, 0) :])
    else:
        expected = (206, content[first : None if last is None else last + 1])
    if not expected[1] and expected[0] == 206:
        expected = (416, b"")
    assert (answer.status, content[answer.begin : answer.end]) == expected


@pytest.mark.parametrize(
    ("model", "file", "says"),
    [
        ("kept", "weights.llmhostd.remote.json", "there is no file 'weights.llmhostd.remote.json'"),
        ("kept", "..%2F..%2Fetc%2Fpasswd", "there is no"),
        ("kept", "%2Fetc%2Fpasswd", "there is no"),
        ("kept", "config.json%00", "there is no file"),
        ("kept", ".", "there is no"),
        ("linked", "config.json", "config.json: cannot be read"),
        ("tiny-llama", "config.json", "only stores are handed on"),
        ("kep", "config.json", "did you mean 'kept'?"),
    ],
)
def test_nothing_else_can_be_had(peer: DaemonProcess, model: str, file: str, says: str) -> None:
    answer = get(peer, file, model)
    assert answer.status_code == 404
    assert says in answer.json()["error"]["message"]


def test_it_is_for_those_who_have_a_key(peer: DaemonProcess) -> None:
    url = f"{peer.url}/api/v1/models/kept/store/{INDEX_FILE}"
    assert httpx.get(url).status_code == 401
    assert httpx.get(url, headers={"Authorization": "Bearer wrong"}).status_code == 401


def test_a_file_that_was_cut_short_is_not_handed_on(peer: DaemonProcess, store: Path) -> None:
    whole = (store / DATA_FILE).read_bytes()
    try:
        os.truncate(store / DATA_FILE, len(whole) // 2)
        assert get(peer, DATA_FILE).status_code == 404
    finally:
        (store / DATA_FILE).write_bytes(whole)
    assert get(peer, DATA_FILE).content == whole


def test_a_few_go_at_a_time_and_those_who_leave_let_others_in(peer: DaemonProcess, large: Path) -> None:
    """Two that read nothing have both turns; a third is told to come back, and served once they are gone."""
    host, port = peer.url.removeprefix("http://").split(":")
    asks = f"GET /api/v1/models/large/store/{DATA_FILE} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n\r\n"
    slow = []
    for _ in range(2):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.connect((host, int(port)))
        one.sendall(asks.encode())
        one.recv(1)
        slow.append(one)
    refused = get(peer, DATA_FILE)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert peer.http.get("/healthz").text == "ok\n"
    for one in slow:
        one.close()
    assert get(peer, DATA_FILE, "large").content == (large / DATA_FILE).read_bytes()
    assert "Traceback" not in peer.log
