"""Is a model served whose weights lie behind a web server, whatever becomes of server, worker and daemon?"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from daemon_process import EXACT, PATIENT, DaemonProcess
from file_server import FileServer, serving

from llmhostd.loader.store_index import DATA_FILE, arrives, read_index

COMMAND = str(Path(sys.executable).with_name("llmhostd"))
SETTINGS = EXACT + PATIENT + "[fetch]\nfetch_retries = 2\nfetch_retry_wait_s = 0.05\nfetch_timeout_s = 60.0\n"
SETTINGS += "[recovery]\nload_retry_s = 0.5\n"
SLOW = 4e6


@pytest.fixture(scope="module")
def shared(root: Path, tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Iterator[DaemonProcess]:
    """A daemon with the model as one of its own, beside those that each test adds under another name."""
    models = [root / "models" / "large", tiny_models_dir / "tiny-llama"]
    with DaemonProcess(tmp_path_factory.mktemp("shared"), models, settings=SETTINGS) as one:
        yield one
    assert "Traceback" not in one.log


def typed(state: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [COMMAND, "--state-dir", str(state), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def add(files: FileServer, state: Path, secret: str = "", name: str = "large") -> Path:
    done = typed(state, "models", "add", f"{files.origin}/models/large{secret}", "--name", name)
    assert done.returncode == 0, done.stderr
    return state / "models" / name


def ask(daemon: DaemonProcess, name: str = "large") -> list[float]:
    """The likelihoods of some greedy tokens."""
    answer = daemon.openai.completions.create(
        model=name, prompt="abc", max_tokens=12, temperature=0, logprobs=1, extra_body={"ignore_eos": True}
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    return [one or 0.0 for one in logprobs.token_logprobs or ()]


def instance(daemon: DaemonProcess, name: str = "large") -> dict[str, Any] | None:
    found: list[dict[str, Any]] = daemon.http.get("/api/v1/instances").json()
    return next((one for one in found if one["model"] == name), None)


def until(done: Callable[[], object]) -> None:
    limit_s = time.monotonic() + 60
    while not done():
        assert time.monotonic() < limit_s
        time.sleep(0.01)


def comes(daemon: DaemonProcess, name: str = "large") -> bool:
    """Whether some of its weights came, and not all."""
    one = instance(daemon, name)
    return one is not None and one["state"] == "loading" and 0 < (one["fetched_bytes"] or 0) < one["fetch_bytes"]


def slowly(files: FileServer) -> None:
    files.bytes_per_s, files.sent_bytes = SLOW, 0


@pytest.fixture(scope="module")
def expected(shared: DaemonProcess) -> object:
    return pytest.approx(ask(shared), abs=1e-3)


def test_the_first_request_brings_the_weights_and_later_loads_come_from_the_disk(
    root: Path, tmp_path: Path, expected: object
) -> None:
    with serving(FileServer(root)) as files:
        store = add(files, tmp_path / "state", "?token=s3cret")
        data_bytes = read_index(store).data_bytes
        slowly(files)
        with DaemonProcess(tmp_path / "state", settings=SETTINGS) as daemon:
            (model,) = daemon.http.get("/api/v1/models").json()
            until(lambda: daemon.http.get("/api/v1/models").json()[0]["remote_bytes"] == data_bytes)
            assert model["state"] == "cold"
            assert f"{data_bytes / 2**20:.1f} MiB to be fetched" in typed(tmp_path / "state", "models", "list").stdout
            with ThreadPoolExecutor(1) as pool:
                answer = pool.submit(ask, daemon)
                until(lambda: comes(daemon))
                assert "fetched" in typed(tmp_path / "state", "ps").stdout
                assert answer.result() == expected
            (node,) = daemon.http.get("/api/v1/nodes").json()
            assert 0.5 * SLOW < node["remote_bytes_per_s"] < 2 * SLOW
            until(lambda: not arrives(store))
            daemon.http.post("/api/v1/models/large/unload", json={}).raise_for_status()
            until(lambda: instance(daemon) is None)
            sent = files.sent_bytes
            assert ask(daemon) == expected
            assert files.sent_bytes == sent == data_bytes
            assert typed(tmp_path / "state", "models", "verify").returncode == 0
            gone = typed(tmp_path / "state", "models", "rm", "large")
            assert "its copy" in gone.stdout, gone.stderr
        assert not store.exists()
        assert "s3cret" not in daemon.log


def test_what_is_killed_while_weights_come_goes_on_where_it_was(root: Path, tmp_path: Path, expected: object) -> None:
    state = tmp_path / "state"
    with serving(FileServer(root)) as files:
        store = add(files, state)
        data_bytes = read_index(store).data_bytes
        slowly(files)
        with DaemonProcess(state, settings=SETTINGS) as daemon, ThreadPoolExecutor(1) as pool:
            answer = pool.submit(ask, daemon)
            until(lambda: comes(daemon))
            os.kill(daemon.worker_pids()[0], signal.SIGKILL)
            until(lambda: comes(daemon))
            assert not answer.done()
            daemon.process.kill()
            with pytest.raises(openai.APIConnectionError):
                answer.result()
        assert arrives(store)
        until(lambda: not list(_fetching(store)))
        files.bytes_per_s = float("inf")
        with DaemonProcess(state, settings=SETTINGS) as daemon:
            assert ask(daemon) == expected
        assert files.sent_bytes < 2 * data_bytes
    assert (store / DATA_FILE).read_bytes() == (root / "models" / "large" / DATA_FILE).read_bytes()


def because(daemon: DaemonProcess, name: str) -> str:
    """What is wrong with a model."""
    return next(one["because"] for one in daemon.http.get("/api/v1/models").json() if one["name"] == name)


def test_a_server_that_fails_is_named_and_the_next_try_goes_on(
    root: Path, shared: DaemonProcess, expected: object
) -> None:
    with serving(FileServer(root)) as files:
        store = add(files, shared.state_dir, name="failing")
        files.flips = {4_000_000: 2}
        with pytest.raises(openai.APIError, match=rf"{files.origin}/models/large/{DATA_FILE}: block `.*`, chunk"):
            ask(shared, "failing")
        assert "wrong checksum" in because(shared, "failing")
        until(lambda: _answers(shared, "failing") == expected)
    assert not arrives(store)


def test_neighbours_load_while_weights_come_and_an_unload_stops_them(root: Path, shared: DaemonProcess) -> None:
    with serving(FileServer(root)) as files:
        store = add(files, shared.state_dir, name="slow")
        files.bytes_per_s = 1e6
        shared.http.post("/api/v1/models/slow/load", json={}).raise_for_status()
        until(lambda: comes(shared, "slow"))
        shared.openai.completions.create(model="tiny-llama", prompt="abc", max_tokens=2)
        assert comes(shared, "slow")
        unload(shared, "slow")
        until(lambda: not list(_fetching(store)))
        assert because(shared, "slow") == ""
    assert arrives(store)


def test_a_network_that_goes_when_all_but_the_last_is_there_holds_up_nobody_for_long(
    root: Path, shared: DaemonProcess
) -> None:
    with serving(FileServer(root)) as files:
        store = add(files, shared.state_dir, name="stuck")
        unload(shared, "tiny-llama")
        files.bytes_per_s, files.stuck_after = 10e6, read_index(store).data_bytes - 500_000
        shared.http.post("/api/v1/models/stuck/load", json={}).raise_for_status()
        until(lambda: files.stuck)
        until(lambda: comes(shared, "stuck"))
        time.sleep(1.0)
        assert comes(shared, "stuck")
        unload(shared, "stuck")
        shared.openai.completions.create(model="tiny-llama", prompt="abc", max_tokens=2)
        assert because(shared, "stuck") == ""
    assert arrives(store)


def unload(daemon: DaemonProcess, name: str) -> None:
    daemon.http.post(f"/api/v1/models/{name}/unload", json={}).raise_for_status()
    until(lambda: instance(daemon, name) is None)


def _answers(daemon: DaemonProcess, name: str) -> list[float]:
    try:
        return ask(daemon, name)
    except openai.APIError:
        return []


def _fetching(store: Path) -> list[int]:
    """Processes that fetch a store's weights."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if b"fetch_child" in command and str(store).encode() in command:
            found.append(int(process.name))
    return found
