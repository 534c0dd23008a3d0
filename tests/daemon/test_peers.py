"""Do models come from another daemon, with a key, whichever of both is killed meanwhile?"""

import hashlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from daemon_process import EXACT, PATIENT, DaemonProcess
from goldens.adapters import adapter_config, seeded_adapter
from served_stores import CONFIG, served_store
from slow_wire import slow_wire
from typed_commands import COMMAND

from llmhostd.loader.store_index import DATA_FILE, REMOTE_FILE, arrives

KEY = "a-peers-s3cret"
OPEN = "[fetch]\nfetch_retries = 2\nfetch_retry_wait_s = 0.05\nfetch_timeout_s = 2.0\n[recovery]\nload_retry_s = 0.5\n"
GUARDED = f"[http]\napi_keys = ['{hashlib.sha256(KEY.encode()).hexdigest()}']\nmax_store_transfers = 4\n"
HANDS_ON = EXACT + PATIENT + "[http]\nmax_store_transfers = 4\n"
SLOW = 4e6


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Path:
    return served_store(tmp_path_factory.mktemp("served"), tiny_models_dir)


@pytest.fixture(scope="module")
def peer(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """It serves `large`, and its fine-tune `clerk`."""
    directory = tmp_path_factory.mktemp("peer")
    clerk = seeded_adapter(directory / "clerk", dict(CONFIG), 5, config=adapter_config(rank=4, alpha=8))
    with DaemonProcess(directory / "state", [store], settings=EXACT + PATIENT + GUARDED) as daemon:
        daemon.http.headers["Authorization"] = f"Bearer {KEY}"
        body = {"name": "clerk", "path": str(clerk), "base": "large"}
        daemon.http.post("/api/v1/models", json=body).raise_for_status()
        yield daemon


def add(state: Path, address: str, *more: str, key: str = KEY) -> "subprocess.CompletedProcess[str]":
    command = [*COMMAND, "--state-dir", str(state), "models", "add", address, *more]
    environ = os.environ | {"LLMHOSTD_PEER_KEY": key}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environ)


def address(peer: DaemonProcess, name: str = "large") -> str:
    return f"peer://{peer.url.removeprefix('http://')}/{name}"


def likelihoods(daemon: DaemonProcess, model: str = "large", key: str = "none") -> list[float]:
    """Of some greedy tokens."""
    client = openai.OpenAI(base_url=f"{daemon.url}/v1", api_key=key, max_retries=0, timeout=60)
    answer = client.completions.create(
        model=model, prompt="abc", max_tokens=8, temperature=0, logprobs=1, extra_body={"ignore_eos": True}
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    return [one or 0.0 for one in logprobs.token_logprobs or ()]


@pytest.fixture(scope="module")
def expected(peer: DaemonProcess) -> dict[str, Any]:
    """What the peer itself says."""
    said = {name: pytest.approx(likelihoods(peer, name, KEY), abs=1e-3) for name in ("large", "clerk")}
    assert said["large"] != said["clerk"].expected
    return said


def until(done: Callable[[], object]) -> None:
    limit_s = time.monotonic() + 60
    while not done():
        assert time.monotonic() < limit_s
        time.sleep(0.01)


def comes(daemon: DaemonProcess) -> bool:
    """Whether some of its weights came, and not all."""
    found = daemon.http.get("/api/v1/instances").json()
    return any(0 < (one["fetched_bytes"] or 0) < one["fetch_bytes"] for one in found if one["fetch_bytes"])


def test_a_model_and_its_fine_tune_come_from_a_peer_and_answer_as_there(
    peer: DaemonProcess, store: Path, tmp_path: Path, expected: dict[str, Any]
) -> None:
    for name, more in (("large", ()), ("clerk", ("--base", "large"))):
        done = add(tmp_path, address(peer, name), *more)
        assert done.returncode == 0, done.stderr
    here = tmp_path / "models" / "large"
    assert arrives(here)
    assert (here / REMOTE_FILE).stat().st_mode & 0o777 == 0o600
    with DaemonProcess(tmp_path, settings=HANDS_ON + OPEN) as daemon:
        assert likelihoods(daemon, "clerk") == expected["clerk"]
        assert likelihoods(daemon) == expected["large"]
        until(lambda: not arrives(here))
        shown = daemon.http.get("/api/v1/models").text
        listed = [*COMMAND, "--state-dir", str(tmp_path), "models", "list"]
        shown += subprocess.run(listed, capture_output=True, text=True, check=True).stdout
        assert KEY not in shown + daemon.log
        # It is a peer itself now.
        assert daemon.http.get(f"/api/v1/models/large/store/{DATA_FILE}").content == (store / DATA_FILE).read_bytes()
    with (tmp_path / "state.db").open("rb") as database:
        assert KEY.encode() not in database.read()
    assert KEY not in peer.log


@pytest.mark.parametrize(
    ("name", "key", "says"),
    [
        ("large", "wrong", "the server answered 401 Unauthorized: the API key is missing or unknown"),
        ("large", "", "the server answered 401 Unauthorized: the API key is missing or unknown"),
        ("larg", KEY, "there is no model 'larg'; did you mean 'large'?"),
    ],
)
def test_what_a_peer_refuses_is_said_in_its_own_words(
    peer: DaemonProcess, tmp_path: Path, name: str, key: str, says: str
) -> None:
    done = add(tmp_path, address(peer, name), key=key)
    assert done.returncode == 1
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.rglob("*larg*"))


def test_a_peer_that_is_killed_midway_is_named_and_whatever_came_is_kept(
    store: Path, tmp_path: Path, expected: dict[str, Any]
) -> None:
    here = tmp_path / "here" / "models" / "large"
    with DaemonProcess(tmp_path / "peer", [store], settings=HANDS_ON) as first, slow_wire(first.url) as wire:
        there = f"peer://127.0.0.1:{wire.port}/large"
        assert add(tmp_path / "here", there).returncode == 0
        wire.bytes_per_s = SLOW
        with DaemonProcess(tmp_path / "here", settings=EXACT + PATIENT + OPEN) as daemon, ThreadPoolExecutor(1) as pool:
            answer = pool.submit(likelihoods, daemon)
            until(lambda: comes(daemon))
            first.process.kill()
            with pytest.raises(openai.APIError, match=rf"http://127.0.0.1:{wire.port}/api/v1/models/large/store/"):
                answer.result()
            assert "Traceback" not in daemon.log
            (model,) = daemon.http.get("/api/v1/models").json()
            assert model["because"]
            assert arrives(here)
            with DaemonProcess(tmp_path / "peer", [store], settings=HANDS_ON) as second:
                host, port = second.url.removeprefix("http://").split(":")
                wire.to, wire.bytes_per_s, wire.came_bytes = (host, int(port)), float("inf"), 0
                until(lambda: answers(daemon) == expected["large"])
                assert 0 < wire.came_bytes < (store / DATA_FILE).stat().st_size
    assert (here / DATA_FILE).read_bytes() == (store / DATA_FILE).read_bytes()


def test_whoever_fetches_may_be_killed_and_goes_on_and_a_flipped_bit_is_found(
    store: Path, tmp_path: Path, expected: dict[str, Any]
) -> None:
    damaged = tmp_path / "damaged" / "large"
    damaged.mkdir(parents=True)
    for file in store.iterdir():
        (damaged / file.name).write_bytes(file.read_bytes())
    flip(damaged / DATA_FILE)
    here = tmp_path / "here"
    with DaemonProcess(tmp_path / "peer", [damaged], settings=HANDS_ON) as peer, slow_wire(peer.url) as wire:
        assert add(here, f"peer://127.0.0.1:{wire.port}/large").returncode == 0
        wire.bytes_per_s = SLOW
        with DaemonProcess(here, settings=EXACT + PATIENT + OPEN) as daemon:
            daemon.http.post("/api/v1/models/large/load", json={}).raise_for_status()
            until(lambda: comes(daemon))
            daemon.process.kill()
        wire.bytes_per_s = float("inf")
        with DaemonProcess(here, settings=EXACT + PATIENT + OPEN) as daemon:
            with pytest.raises(openai.APIError, match="came twice with a wrong checksum: it is damaged there"):
                likelihoods(daemon)
            flip(damaged / DATA_FILE)
            until(lambda: answers(daemon) == expected["large"])


def flip(file: Path) -> None:
    """Turn one bit of the last chunk around, where it lies."""
    with file.open("r+b") as opened:
        opened.seek(-100, os.SEEK_END)
        byte = opened.read(1)[0]
        opened.seek(-100, os.SEEK_END)
        opened.write(bytes([byte ^ 16]))


def answers(daemon: DaemonProcess) -> list[float]:
    try:
        return likelihoods(daemon)
    except openai.APIError:
        return []
