"""Two hundred live migrations under load: does a token change, is a stream lost, and how long does one pause?

First on a clock of our own, where iterations take exactly what a profile says and a pause is counted in iterations;
then with real workers, where it is timed. Either end is killed now and then, at whichever step its migration is.
"""

import json
import os
import random
import re
import signal
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from box import Box, box, checkpoints

from llmhostd.domain.model import WeightFormat

sys.path.append(str(Path(__file__).parents[1] / "migration"))

from profiled_box import node
from virtual_world import VirtualWorld

MOVES = 200
NODES = [node(f"cpu{n}", 2000) for n in range(3)]
SMALL = {"layers": 4, "hidden": 512, "heads": 8, "kv_heads": 2, "intermediate": 1408, "vocab": 8000}
TWO_NODES = (
    '[[nodes]]\nid = "cpu0"\ncores = "0"\n[[nodes]]\nid = "cpu1"\ncores = "1"\n'
    '[precision]\ncompute = "f32"\nkv = "f32"\n[slo]\nttft_s = 60.0\ntpot_s = 2.0\n'
)
CALLERS, TOKENS = 4, 400


@pytest.mark.parametrize("kind", ["at once", "live", "live, with kills"])
def test_pauses_in_iterations(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    kill_every_s = 1.0 if "kills" in kind else None
    world = VirtualWorld(NODES, ("wren", "owl"), seed=2, live="live" in kind, kill_every_s=kill_every_s)
    seen = world.run(MOVES)
    assert not seen.wrong
    assert not seen.lost
    moved = [one for one in seen.switches if (one.live or "live" not in kind) and not one.death]
    assert len(moved) >= MOVES * 0.9
    usual_ms = 1000 * statistics.median(seen.usual_s)
    pauses_ms = sorted(1000 * one.gap_s for one in moved)
    iterations = sorted(one.iterations for one in moved)
    kills = ", ".join(f"{count} of the {end} in {step}" for (step, end), count in sorted(seen.kills.items()))
    with capsys.disabled():
        print(
            f"\n{kind}: {len(moved)} moves of {seen.streams} streams, {seen.wrong} wrong, {seen.lost} lost\n"
            f"  pause: median {pauses_ms[len(moved) // 2]:.0f} ms, longest {pauses_ms[-1]:.0f} ms;"
            f" median {iterations[len(moved) // 2]}, longest {iterations[-1]} iterations of the destination\n"
            f"  a token of a stream that stays: median {usual_ms:.0f} ms" + (f"\n  kills: {kills}" if kills else "")
        )
    if "live" in kind:
        assert iterations[-1] <= 2


def stream(here: Box, model: str, caller: int) -> tuple[str, list[float]]:
    """Stream one greedy completion; returns its text, and when each token came."""
    prompt = [(caller * 7919 + i * 31) % 7000 + 300 for i in range(200)]
    body = {
        "model": model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True,
    }  # fmt: skip
    text, came_s, line, ends = "", [], "", ""
    with httpx.stream("POST", here.url + "/v1/completions", json=body, timeout=300) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                assert '"error"' not in line, line
                ends = line
                text += "".join(choice["text"] for choice in json.loads(line[6:])["choices"])
                came_s.append(time.monotonic())
    assert '"finish_reason":"length"' in ends, ends
    return text, came_s


def move_something(here: Box, chance: random.Random) -> None:
    """As an operator would: whatever streams now goes to the other node."""
    rows = [row for row in here.get("/api/v1/requests") if row["phase"] == "decode" and not row["moving_to"]]
    if rows:
        row = chance.choice(rows)
        other = "cpu1" if "@cpu0#" in row["instance_id"] else "cpu0"
        httpx.post(f"{here.url}/api/v1/requests/{row['id']}/move", json={"node": other}, timeout=60)


def switches(here: Box) -> int:
    return len(re.findall(r"RecallRequest .* tokens behind", (here.state_dir / "daemon.log").read_text()))


def pauses(came: list[list[float]]) -> tuple[float, float, float]:
    """Median, 99th percentile and longest time between two tokens, in ms."""
    between = sorted(1000 * (b - a) for one in came for a, b in pairwise(one))
    return between[len(between) // 2], between[len(between) * 99 // 100], between[-1]


def spell(times_ms: tuple[float, float, float]) -> str:
    return "median {:.1f}, p99 {:.1f}, longest {:.1f} ms".format(*times_ms)


@pytest.mark.parametrize("kills", [False, True])
def test_real_workers(tmp_path: Path, kills: bool, capsys: pytest.CaptureFixture[str]) -> None:
    models = checkpoints(2, WeightFormat.F32, **SMALL)
    asks = [(models[caller % 2].name, caller) for caller in range(CALLERS)]
    with box(tmp_path / "state", models, "--compute", "f32", "--kv", "f32", config=TWO_NODES) as here:
        for ask in asks:
            stream(here, *ask)
        here.settle()
        with ThreadPoolExecutor(CALLERS) as pool:
            undisturbed = list(pool.map(lambda ask: stream(here, *ask), asks))
        stop, wrong, came, killed = threading.Event(), 0, [], 0

        def again_and_again(index: int) -> tuple[int, list[list[float]]]:
            differ, times = 0, []
            while not stop.is_set():
                text, came_s = stream(here, *asks[index])
                differ += text != undisturbed[index][0]
                times.append(came_s)
            return differ, times

        chance, until_s = random.Random(1), time.monotonic() + 240
        with ThreadPoolExecutor(CALLERS) as pool:
            calls = [pool.submit(again_and_again, index) for index in range(CALLERS)]
            while switches(here) < MOVES and time.monotonic() < until_s and not any(one.done() for one in calls):
                move_something(here, chance)
                time.sleep(0.02)
                if kills and switches(here) >= (killed + 1) * 10:
                    os.kill(chance.choice(here.worker_pids()), signal.SIGKILL)
                    killed += 1
                    time.sleep(1.0)
            stop.set()
            for one in calls:
                differ, times = one.result()
                wrong, came = wrong + differ, came + times
        quiet, moving = (spell(pauses(one)) for one in ([came_s for _, came_s in undisturbed], came))
        with capsys.disabled():
            print(
                f"\nreal workers: {switches(here)} moves, {killed} kills, no stream lost;"
                f" {wrong} of {len(came)} said something else than undisturbed\n"
                f"  between two tokens: undisturbed {quiet}; moving {moving}"
            )
        assert wrong == 0
        assert switches(here) >= MOVES // 4
