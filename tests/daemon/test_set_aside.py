"""Are models that took their workers down, and nodes that an operator emptied, left alone by the next run, too?"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from daemon_process import EXACT, PATIENT, DaemonProcess
from typed_commands import llmhostd

BODY = {"model": "tiny-llama", "prompt": "again and again", "max_tokens": 5, "ignore_eos": True}
SLOW = {"memory_bytes_per_s": 1e12, "operations_per_s": 1e14, "iteration_overhead_s": 0.3, "load_overhead_s": 0.05}
"""A device that computes nearly all the time: whatever happens to it, happens during an iteration."""


def settings(folder: Path) -> str:
    (folder / "slow.json").write_text(json.dumps({"roofline": SLOW}))
    nodes = "".join(
        f'[[nodes]]\nid = "gpu{n}"\nkind = "gpu"\nengine = "profiled"\nmemory = "1 GiB"\n'
        f'profile = "{folder / "slow.json"}"\n'
        for n in range(2)
    )
    return f"{EXACT}{PATIENT}[recovery]\ncrashes_until_quarantine = 1\n{nodes}"


def row(daemon: DaemonProcess, of: str, name: str) -> dict[str, Any]:
    rows = daemon.http.get(f"/api/v1/{of}").json()
    return next(one for one in rows if name in (one.get("name"), one.get("id")))


def crash_until_quarantined(daemon: DaemonProcess) -> None:
    """Workers die while they compute for a model, of something for which only itself can be blamed."""
    with ThreadPoolExecutor(1) as pool:
        patience_s = time.monotonic() + 120
        while row(daemon, "models", "tiny-llama")["state"] != "quarantined":
            assert time.monotonic() < patience_s
            asked = pool.submit(daemon.http.post, "/v1/completions", json=BODY)
            while not any(one["tokens_out"] for one in daemon.http.get("/api/v1/requests").json()):
                time.sleep(0.01)
            for pid in daemon.worker_pids():
                os.kill(pid, signal.SIGSEGV)
            asked.exception()
    assert asked.result().status_code == 503


def killed(daemon: DaemonProcess) -> None:
    daemon.process.kill()
    daemon.process.wait(20)


def test_quarantine_and_drain_hold_until_somebody_ends_them(tmp_path: Path, tiny_models_dir: Path) -> None:
    state, names = tmp_path / "state", [tiny_models_dir / "tiny-llama", tiny_models_dir / "tiny-qwen3"]
    with DaemonProcess(state, names, settings=settings(tmp_path)) as daemon:
        crash_until_quarantined(daemon)
        because = row(daemon, "models", "tiny-llama")["because"]
        assert daemon.http.post("/api/v1/nodes/gpu1/drain").status_code == 202
        killed(daemon)
    with DaemonProcess(state, settings=settings(tmp_path)) as daemon:
        assert row(daemon, "models", "tiny-llama")["state"] == "quarantined"
        assert row(daemon, "nodes", "gpu1")["draining"]
        assert row(daemon, "models", "tiny-llama")["because"] == because
        assert f"tiny-llama is quarantined: {because}" in daemon.log
        assert daemon.http.post("/v1/completions", json=BODY).status_code == 503
        assert daemon.http.post("/v1/completions", json=BODY | {"model": "tiny-qwen3"}).status_code == 200
        assert {one["node_id"] for one in daemon.http.get("/api/v1/instances").json()} == {"gpu0"}
        here = ("--config", state / "llmhostd.toml", "--state-dir", state)
        seen = " ".join(llmhostd(*here, "ps").stdout.split())
        assert f"tiny-llama is quarantined: {' '.join(because.split())}"[:60] in seen
        assert "draining" in seen
        found = llmhostd(*here, "doctor").stdout
        assert "`llmhostd models release tiny-llama` tries again" in " ".join(found.split())
        assert "`llmhostd drain gpu1 --end` uses it again" in " ".join(found.split())
        asked = llmhostd(*here, "models", "load", "tiny-llama")
        assert (asked.returncode, "name: tiny-llama is quarantined: " in asked.stderr) == (2, True)
        assert "`llmhostd models release tiny-llama` lets it try again" in asked.stderr
        assert llmhostd(*here, "models", "release", "tiny-llama").returncode == 0
        assert llmhostd(*here, "drain", "gpu1", "--end").returncode == 0
        killed(daemon)
    with DaemonProcess(state, settings=settings(tmp_path)) as daemon:
        assert row(daemon, "models", "tiny-llama")["state"] != "quarantined"
        assert not row(daemon, "nodes", "gpu1")["draining"]
        assert daemon.http.post("/v1/completions", json=BODY | {"max_tokens": 4}).status_code == 200


class FirstWorkerHeld(threading.Thread):
    """Stops the first node's worker as soon as it is there, until something was done with the daemon."""

    def __init__(self, daemon: DaemonProcess, meanwhile: Callable[[httpx.Client], None]) -> None:
        super().__init__(daemon=True)
        self._daemon = daemon
        self._meanwhile = meanwhile

    def run(self) -> None:
        while not hasattr(self._daemon, "process") or not (pids := self._daemon.worker_pids()):
            time.sleep(0.001)
        os.kill(pids[0], signal.SIGSTOP)
        transport = httpx.HTTPTransport(uds=str(self._daemon.state_dir / "llmhostd.sock"), retries=100)
        try:
            with httpx.Client(transport=transport, base_url="http://localhost", timeout=60) as http:
                self._meanwhile(http)
        finally:
            os.kill(pids[0], signal.SIGCONT)


def up(http: httpx.Client) -> list[str]:
    return [one["id"] for one in http.get("/api/v1/nodes").json() if one["up"]]


def until_one_is_up(http: httpx.Client) -> None:
    while not up(http):
        time.sleep(0.01)


def test_it_does_not_say_that_it_serves_while_only_a_drained_node_is_up(tmp_path: Path, tiny_models_dir: Path) -> None:
    said = []

    def listen(http: httpx.Client) -> None:
        until_one_is_up(http)
        said.extend([*up(http), http.get("/readyz").text])

    state = tmp_path / "state"
    with DaemonProcess(state, [tiny_models_dir / "tiny-llama"], settings=settings(tmp_path)) as daemon:
        assert daemon.http.post("/api/v1/nodes/gpu1/drain").status_code == 202
    again = DaemonProcess(state, settings=settings(tmp_path))
    held = FirstWorkerHeld(again, listen)
    held.start()
    with again as daemon:
        assert daemon.http.get("/readyz").status_code == 200
        assert daemon.http.post("/v1/completions", json=BODY).status_code == 200
        held.join()
        assert said == ["gpu1", "every node that is up is being drained\n"]
        # Nothing is left to wait for: whoever drained all of them may end that.
        assert daemon.http.post("/api/v1/nodes/gpu0/drain").status_code == 202
        assert daemon.http.get("/readyz").text == "every node that is up is being drained\n"
    with DaemonProcess(state, settings=settings(tmp_path)) as daemon:
        assert daemon.http.post("/v1/completions", json=BODY).status_code == 503
        assert daemon.http.delete("/api/v1/nodes/gpu0/drain").status_code == 202
        while "gpu0" not in up(daemon.http):  # it was enough that one of them is
            time.sleep(0.01)
        assert daemon.http.get("/readyz").status_code == 200


@pytest.mark.parametrize(("verb", "node"), [("DELETE", "gpu1"), ("POST", "gpu0")])
def test_what_an_operator_says_of_drains_before_it_serves_counts_at_once(
    verb: str, node: str, tmp_path: Path, tiny_models_dir: Path
) -> None:
    state = tmp_path / "state"
    with DaemonProcess(state, [tiny_models_dir / "tiny-llama"], settings=settings(tmp_path)) as daemon:
        assert daemon.http.post("/api/v1/nodes/gpu1/drain").status_code == 202
    again, serves = DaemonProcess(state, settings=settings(tmp_path)), threading.Event()

    def change_the_drain(http: httpx.Client) -> None:
        until_one_is_up(http)
        assert http.request(verb, f"/api/v1/nodes/{node}/drain").status_code == 202
        serves.wait(60)

    held = FirstWorkerHeld(again, change_the_drain)
    held.start()
    with again as daemon:
        assert up(daemon.http) == ["gpu1"]
        found = llmhostd("--config", state / "llmhostd.toml", "--state-dir", state, "doctor").stdout
        assert "gpu0 is not up yet: its worker starts." in " ".join(found.split())
        serves.set()
        held.join()


def test_whoever_asks_before_a_worker_was_ever_up_waits_for_it(tmp_path: Path, tiny_models_dir: Path) -> None:
    patient = f"{EXACT}{PATIENT}[hope]\nmost_restart_s = 600.0\n"  # however long the daemon itself takes to begin
    starting = DaemonProcess(tmp_path / "state", [tiny_models_dir / "tiny-llama"], settings=patient)
    answers: list[int] = []

    def ask(http: httpx.Client) -> None:
        asking = threading.Thread(target=lambda: answers.append(http.post("/v1/completions", json=BODY).status_code))
        asking.start()
        while not (waiting := http.get("/api/v1/requests").json()) and asking.is_alive():
            time.sleep(0.01)
        answers.extend([len(up(http)), len(waiting)])
        os.kill(starting.worker_pids()[0], signal.SIGCONT)
        asking.join()

    held = FirstWorkerHeld(starting, ask)
    held.start()
    with starting:
        held.join()
        assert answers == [0, 1, 200]


def test_a_model_that_is_added_again_may_try_again(tmp_path: Path, tiny_models_dir: Path) -> None:
    state, name = tmp_path / "state", tiny_models_dir / "tiny-llama"
    with DaemonProcess(state, [name], settings=settings(tmp_path)) as daemon:
        crash_until_quarantined(daemon)
        again = {"name": "tiny-llama", "path": str(name)}
        assert daemon.http.post("/api/v1/models", json=again).status_code == 201
        killed(daemon)
    with DaemonProcess(state, settings=settings(tmp_path)) as daemon:
        assert row(daemon, "models", "tiny-llama")["state"] != "quarantined"
