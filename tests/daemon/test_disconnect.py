"""Is a request whose caller went away cancelled, and what it held freed?"""

import json
import os
import signal
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest
from daemon_process import DaemonProcess

LONG = {
    "model": "tiny-mistral", "messages": [{"role": "user", "content": "go on"}], "max_tokens": 480, "ignore_eos": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def daemon(tiny_models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess(tmp_path_factory.mktemp("daemon"), [tiny_models_dir / "tiny-mistral"]) as process:
        process.http.post("/v1/chat/completions", json=LONG | {"max_tokens": 1})
        yield process


def cancelled(daemon: DaemonProcess) -> float:
    for line in daemon.http.get("/metrics").text.splitlines():
        if line.startswith("llmhostd_requests_total") and 'outcome="cancelled"' in line:
            return float(line.rpartition(" ")[2])
    return 0.0


def nobody_is_served(daemon: DaemonProcess) -> bool:
    deadline_s = time.monotonic() + 120
    while daemon.http.get("/api/v1/requests").json() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return daemon.http.get("/api/v1/requests").json() == []


def test_closing_a_stream_cancels(daemon: DaemonProcess) -> None:
    before = cancelled(daemon)
    for _ in range(3):
        with httpx.stream("POST", f"{daemon.url}/v1/chat/completions", json=LONG | {"stream": True, "n": 4}) as answer:
            next(answer.iter_lines())
    assert nobody_is_served(daemon)
    assert cancelled(daemon) > before


def test_giving_up_on_a_whole_answer_cancels(daemon: DaemonProcess) -> None:
    before = cancelled(daemon)
    (worker,) = daemon.worker_pids()
    os.kill(worker, signal.SIGSTOP)  # or a machine that is busy elsewhere would see it answered first
    try:
        address = httpx.URL(daemon.url)
        wire = HTTPConnection(address.host, address.port)
        wire.request("POST", "/v1/chat/completions", json.dumps(LONG | {"n": 4}), {"Content-Type": "application/json"})
        while len(daemon.http.get("/api/v1/requests").json()) < 4:
            time.sleep(0.01)
        wire.close()
        assert nobody_is_served(daemon)
    finally:
        os.kill(worker, signal.SIGCONT)
    assert cancelled(daemon) == before + 4


def test_a_closed_event_stream_gives_its_place_back(daemon: DaemonProcess) -> None:
    for _ in range(40):  # more than may follow at once
        with httpx.stream("GET", f"{daemon.url}/api/v1/events") as feed:
            assert feed.status_code in (200, 503)
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        with httpx.stream("GET", f"{daemon.url}/api/v1/events") as feed:
            if feed.status_code == 200:
                return
    raise AssertionError("no place came free")


def test_the_daemon_is_as_good_as_before(daemon: DaemonProcess) -> None:
    answer = daemon.http.post("/v1/chat/completions", json=LONG | {"max_tokens": 3})
    assert answer.json()["usage"]["completion_tokens"] == 3
    (instance,) = daemon.http.get("/api/v1/instances").json()
    assert instance["running"] == 0
    assert "Traceback" not in daemon.log
