"""What happens when somebody cuts weights short, or writes over them, while a model uses them where they lie?"""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
import streams
from daemon_process import DaemonProcess

from llmhostd.loader.convert import convert
from llmhostd.loader.store_index import DATA_FILE


def until(done: Callable[[], object]) -> None:
    limit_s = time.monotonic() + 30
    while not done():
        assert time.monotonic() < limit_s
        time.sleep(0.01)


def ask(daemon: DaemonProcess, model: str) -> str:
    answer = daemon.openai.completions.create(model=model, prompt="abc", max_tokens=4, temperature=0)
    return answer.choices[0].text


def shown(daemon: DaemonProcess, model: str) -> dict[str, str]:
    found: list[dict[str, str]] = daemon.http.get("/api/v1/models").json()
    return next(one for one in found if one["name"] == model)


CHANGES = {
    "cut short": "os.truncate(file, 1000)",
    "written over": "open(file, 'r+b').write(b'\\xff' * os.stat(file).st_size)",
    "copied over": "shutil.copyfile(other, file)",
}


@pytest.mark.usefixtures("leases")
@pytest.mark.parametrize(("change", "stored"), [("cut short", False), ("written over", False), ("copied over", True)])
def test_streams_go_on_beside_whoever_changes_their_weights(
    tmp_path: Path, tiny_models_dir: Path, change: str, *, stored: bool
) -> None:
    changed, other = tmp_path / "changed", tmp_path / "other"
    convert(tiny_models_dir / "tiny-qwen3", other)
    if stored:
        convert(tiny_models_dir / "tiny-llama", changed)
    else:
        shutil.copytree(tiny_models_dir / "tiny-llama", changed)
    file = changed / (DATA_FILE if stored else "model.safetensors")
    with DaemonProcess(tmp_path / "state", [changed, other]) as daemon, ThreadPoolExecutor() as pool:
        expected = {name: streams.ask(daemon, name, 1) for name in ("changed", "other")}
        short = ask(daemon, "changed")
        daemon.http.post("/api/v1/models/changed/unload", json={}).raise_for_status()
        until(lambda: shown(daemon, "changed")["state"] == "cold")
        workers = daemon.worker_pids()
        running = {name: pool.submit(streams.ask, daemon, name, 1) for name in expected}
        until(lambda: shown(daemon, "changed")["state"] == "resident")
        script = f"import os, shutil; file, other = {str(file)!r}, {str(other / DATA_FILE)!r}; {CHANGES[change]}"
        subprocess.run([sys.executable, "-c", script], check=True)
        assert {name: one.result() for name, one in running.items()} == expected
        # Whoever comes now is served, too.
        assert ask(daemon, "changed") == short
        assert daemon.worker_pids() == workers
        assert "somebody writes to it while it is used where it lies" in daemon.log
        # What is loaded anew is what lies there now.
        daemon.http.post("/api/v1/models/changed/unload", json={}).raise_for_status()
        until(lambda: shown(daemon, "changed")["state"] == "cold")
        if stored or change == "cut short":
            with pytest.raises(openai.APIError, match=file.name):
                ask(daemon, "changed")
            assert file.name in shown(daemon, "changed")["because"], shown(daemon, "changed")
        assert ask(daemon, "other")
        assert daemon.worker_pids() == workers
    assert "Traceback" not in daemon.log


@pytest.mark.usefixtures("leases")
def test_who_had_a_file_open_for_writing_ends_the_worker_and_the_file_is_named(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    broken, other = tmp_path / "broken", tmp_path / "other"
    convert(tiny_models_dir / "tiny-llama", broken)
    convert(tiny_models_dir / "tiny-qwen3", other)
    shutil.copy(broken / DATA_FILE, tmp_path / "kept")
    with DaemonProcess(tmp_path / "state", [broken, other]) as daemon, (broken / DATA_FILE).open("r+b") as writing:
        before = ask(daemon, "other")
        expected = ask(daemon, "broken")
        daemon.http.post("/api/v1/models/broken/unload", json={}).raise_for_status()
        until(lambda: shown(daemon, "broken")["state"] == "cold")
        daemon.http.post("/api/v1/models/broken/load", json={}).raise_for_status()
        until(lambda: shown(daemon, "broken")["state"] == "warm")
        writing.truncate(4096)
        with pytest.raises(openai.APIError, match="cut short"):
            ask(daemon, "broken")
        model = shown(daemon, "broken")
        assert model["state"] == "quarantined"
        assert f"{broken / DATA_FILE} was cut short (4,096 of " in model["because"]
        assert ask(daemon, "other") == before
        (node,) = daemon.http.get("/api/v1/nodes").json()
        assert node["restarts"] == 1
        shutil.copy(tmp_path / "kept", broken / DATA_FILE)
        daemon.http.post("/api/v1/models/broken/release", json={}).raise_for_status()
        assert ask(daemon, "broken") == expected
    assert "cannot be leased: somebody has it open for writing" in daemon.log
    assert "Traceback" not in daemon.log
