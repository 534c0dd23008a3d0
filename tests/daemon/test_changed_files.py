"""What happens when somebody cuts weights short while a model uses them where they lie?"""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import openai
import pytest
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


def test_the_file_is_named_its_model_set_aside_and_the_others_go_on(tmp_path: Path, tiny_models_dir: Path) -> None:
    broken, other = tmp_path / "broken", tmp_path / "other"
    convert(tiny_models_dir / "tiny-llama", broken)
    convert(tiny_models_dir / "tiny-qwen3", other)
    shutil.copy(broken / DATA_FILE, tmp_path / "kept")
    with DaemonProcess(tmp_path / "state", [broken, other]) as daemon:
        before = ask(daemon, "other")
        expected = ask(daemon, "broken")
        daemon.http.post("/api/v1/models/broken/unload", json={}).raise_for_status()
        until(lambda: shown(daemon, "broken")["state"] == "cold")
        daemon.http.post("/api/v1/models/broken/load", json={}).raise_for_status()
        until(lambda: shown(daemon, "broken")["state"] == "warm")
        os.truncate(broken / DATA_FILE, 4096)
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
    assert "Traceback" not in daemon.log
