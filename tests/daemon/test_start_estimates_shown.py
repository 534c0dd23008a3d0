"""Are start times foretold where people look, learned from, and still known after a restart?"""

import subprocess
import time
from pathlib import Path
from typing import Any

from daemon_process import COMMAND, EXACT, PATIENT, DaemonProcess
from streams import ask

MODEL = "tiny-llama"
STAY_COLD = EXACT + PATIENT + "[daemon]\nload_again = false\n"


def row(daemon: DaemonProcess, kind: str, **wanted: str) -> dict[str, Any]:
    """The one that is meant; {} if there is none."""
    rows = daemon.http.get(f"/api/v1/{kind}").json()
    return next((one for one in rows if all(one[key] == value for key, value in wanted.items())), {})


def until(holds: Any) -> None:
    end_s = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def ps(daemon: DaemonProcess) -> str:
    return subprocess.run([*COMMAND, "--url", daemon.url, "ps"], capture_output=True, text=True, check=True).stdout


def started(daemon: DaemonProcess) -> dict[str, Any]:
    """Ask for the cold model; its instance, once the start is over."""
    ask(daemon, MODEL, 0)
    until(lambda: row(daemon, "instances", model=MODEL).get("start_s"))
    return row(daemon, "instances", model=MODEL)


def cold_again(daemon: DaemonProcess) -> None:
    until(lambda: not row(daemon, "nodes", id="cpu0")["profiling"])
    daemon.http.post(f"/api/v1/models/{MODEL}/unload").raise_for_status()
    until(lambda: not row(daemon, "instances", model=MODEL))


def test_weights_of_what_is_not_loaded_are_kept_in_free_memory(tmp_path: Path, tiny_models_dir: Path) -> None:
    settings = STAY_COLD + "[host_memory]\nlook_every_s = 0.1\n"
    with DaemonProcess(tmp_path / "state", [tiny_models_dir / MODEL], settings=settings) as daemon:
        started(daemon)
        assert row(daemon, "nodes", id="cpu0")["kept_bytes"] == 0, "its weights are packed"
        cold_again(daemon)
        daemon.http.post(f"/api/v1/models/{MODEL}/load").raise_for_status()
        until(lambda: row(daemon, "nodes", id="cpu0")["kept_bytes"] > 0)
        assert row(daemon, "models", name=MODEL)["memory_bytes"] > 0
        ask(daemon, MODEL, 0)
        until(lambda: row(daemon, "nodes", id="cpu0")["kept_bytes"] == 0)
    assert "Traceback" not in daemon.log


def test_starts_are_foretold_learned_and_remembered(tmp_path: Path, tiny_models_dir: Path) -> None:
    state = tmp_path / "state"
    with DaemonProcess(state, [tiny_models_dir / MODEL], settings=STAY_COLD) as daemon:
        assert row(daemon, "models", name=MODEL)["estimated_start_s"] > 0
        assert row(daemon, "nodes", id="cpu0")["start_error"] is None
        for _ in range(3):
            instance = started(daemon)
            assert instance["estimated_start_s"] > 0
            assert row(daemon, "models", name=MODEL)["estimated_start_s"] == 0.0, "it is resident"
            cold_again(daemon)
        model = row(daemon, "models", name=MODEL)
        assert model["last_start_s"] == instance["start_s"]
        assert model["memory_bytes"] > 0, "the page cache is asked"
        foretold_s = model["estimated_start_s"]
        assert row(daemon, "nodes", id="cpu0")["start_error"] is not None
        said = ps(daemon)
        assert "starts on cpu0: foretold with a median error of" in said
        assert "llmhostd_start_estimate_error" in daemon.http.get("/metrics").text
        told = [one for one in said.splitlines() if MODEL in one]
        assert not told, "it is cold: there is no instance"
        started(daemon)
        header, instance_line = ps(daemon).splitlines()[2:4]
        assert "STARTED IN" in header
        assert MODEL in instance_line
    with DaemonProcess(state, [], settings=STAY_COLD) as daemon:
        assert row(daemon, "nodes", id="cpu0")["start_error"] is not None, "what was seen is remembered"
        again_s = row(daemon, "models", name=MODEL)["estimated_start_s"]
        # The last start of the earlier run is known now, too.
        assert 0.2 * foretold_s < again_s < 5 * foretold_s
    assert "Traceback" not in daemon.log
