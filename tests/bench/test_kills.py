"""Twenty kill -9 of the worker under load: does every stream end with exactly the tokens of an undisturbed run?"""

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from box import Box, box, checkpoints

from llmhostd.domain.model import WeightFormat

KILLS, CALLERS, EVERY_S = 20, 6, 1.5
SMALL = {"layers": 4, "hidden": 512, "heads": 8, "kv_heads": 2, "intermediate": 1408, "vocab": 8000}


def answer(here: Box, model: str, caller: int) -> str:
    """Stream one greedy completion; returns its text, or nothing if it was refused."""
    prompt = [(caller * 7919 + i * 31) % 7000 + 300 for i in range(40)]
    body = {"model": model, "prompt": prompt, "max_tokens": 300, "temperature": 0, "ignore_eos": True, "stream": True}
    text = ""
    with httpx.stream("POST", here.url + "/v1/completions", json=body, timeout=120) as response:
        if response.status_code != 200:
            return ""
        for line in response.iter_lines():
            if line.startswith("data: {"):
                text += "".join(choice["text"] for choice in json.loads(line[6:])["choices"])
    return text


def difference(got: str, undisturbed: str) -> str:
    """Say where a stream left the undisturbed one, or that it ended early."""
    pairs = zip(got, undisturbed, strict=False)
    place = next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(got), len(undisturbed)))
    return f"character {place} of {len(undisturbed)}; {len(got)} came: {got[max(place - 20, 0) : place + 20]!r}"


def test_no_token_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    models = checkpoints(2, WeightFormat.F32, **SMALL)
    asks = [(models[caller % 2].name, caller) for caller in range(CALLERS)]
    with box(tmp_path / "state", models, "--compute", "f32", "--kv", "f32") as here:
        for path in models:
            answer(here, path.name, 0)
        here.settle()
        undisturbed = [answer(here, *ask) for ask in asks]
        stop, kills, right, refused = threading.Event(), 0, 0, 0
        wrong: list[str] = []

        def call_again_and_again(index: int) -> tuple[int, int]:
            good = turned_away = 0
            while not stop.is_set():
                got = answer(here, *asks[index])
                good, turned_away = good + (got == undisturbed[index]), turned_away + (not got)
                if got and got != undisturbed[index]:
                    wrong.append(difference(got, undisturbed[index]))
                time.sleep(0.05 if got else 0.3)
            return good, turned_away

        with ThreadPoolExecutor(CALLERS) as pool:
            calls = [pool.submit(call_again_and_again, index) for index in range(CALLERS)]
            while kills < KILLS:
                time.sleep(EVERY_S)
                for pid in here.worker_pids():
                    os.kill(pid, signal.SIGKILL)
                    kills += 1
            time.sleep(EVERY_S)
            stop.set()
            for call in calls:
                good, turned_away = call.result(120)
                right, refused = right + good, refused + turned_away
    with capsys.disabled():
        print(f"\n{kills} kills: {right} streams exact, {len(wrong)} not; {refused} refused while no worker was up")
    assert wrong == []
    assert all(undisturbed)
