"""A real CPU node beside one that stands in for a GPU: who gets which request, and does a moved one go on exactly?"""

import json
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from daemon_process import EXACT, DaemonProcess
from decided import Decided
from llmhostd_profiled.tokens import continuation
from stand_ins import FAST
from tokenizers import Tokenizer

from llmhostd.compute.profile_grid import DecodePoint, PrefillPoint, grid_for
from llmhostd.daemon.nodes import node_layout
from llmhostd.domain.ids import HardwareKey
from llmhostd.domain.model import ComputePrecision, KvPrecision, ModelShape
from llmhostd.domain.profile import DecodeSample, PrefillSample, Profile
from llmhostd.loader.safetensors import describe
from llmhostd.state.database import open_database
from llmhostd.state.profiles import ProfileTable

PROMISE = "[slo]\nttft_s = 4.0\ntpot_s = 1.0\n"
SHORT, LONG = list(range(10, 30)), [7 + place % 200 for place in range(400)]
MODEL = "tiny-llama"


def stand_in(name: str, folder: Path, **figures: float) -> str:
    """The settings of a node that takes its times from a roofline."""
    file = folder / f"{name}.json"
    file.write_text(json.dumps({"roofline": FAST | figures}))
    kind = "cpu" if name.startswith("cpu") else "gpu"
    cores = f'cores = "{min(os.sched_getaffinity(0))}"\n' if kind == "cpu" else ""
    return (
        f'[[nodes]]\nid = "{name}"\nkind = "{kind}"\nengine = "profiled"\nmemory = "1 GiB"\nprofile = "{file}"\n{cores}'
    )


def slow_profile(shape: ModelShape, hardware_key: HardwareKey) -> Profile:
    """20 tokens take one second, as if this were a much older CPU."""
    grid = grid_for(shape)
    points = grid.points
    return Profile(
        shape_key=shape.key, hardware_key=hardware_key, load_s=0.1, first_run_s=0.0, resident_bytes=20 << 20,
        warm_bytes=10 << 20,
        prefill=tuple(
            PrefillSample(chunk_tokens=one.chunk_tokens, past_tokens=one.past_tokens, seconds=one.chunk_tokens / 20)
            for one in points if isinstance(one, PrefillPoint)
        ),
        decode=tuple(
            DecodeSample(batch=one.batch, context_tokens=one.context_tokens, seconds=0.05)
            for one in points if isinstance(one, DecodePoint)
        ),
    )  # fmt: skip


def complete(daemon: DaemonProcess, prompt: list[int], tokens: int) -> str:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    answer = daemon.http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def checked(checkpoint: Path, prompt: list[int], tokens: int) -> str:
    """What the engine that stands in must answer."""
    ids = continuation(prompt, tokens, describe(checkpoint).architecture)
    return Tokenizer.from_file(str(checkpoint / "tokenizer.json")).decode(ids)


def until(holds: Callable[[], object]) -> None:
    end_s = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.002)


def test_what_the_cpu_cannot_serve_in_time_goes_to_the_gpu(tmp_path: Path, tiny_models_dir: Path) -> None:
    checkpoint = tiny_models_dir / MODEL
    cpu = '[[nodes]]\nid = "cpu0"\nmemory = "1 GiB"\n'
    daemon = DaemonProcess(
        tmp_path, [checkpoint], settings=EXACT + PROMISE + cpu + stand_in("gpu0", tmp_path, iteration_overhead_s=0.001)
    )
    key = node_layout().nodes[0].hardware_key
    shape = describe(checkpoint).shape(ComputePrecision.F32, KvPrecision.F32)
    with open_database(tmp_path) as db:
        ProfileTable(db).put(slow_profile(shape, key))
    with daemon, Decided(daemon) as decided:
        daemon.await_nodes()
        by_cpu = complete(daemon, SHORT, 12)
        by_gpu = complete(daemon, LONG, 30)
        assert complete(daemon, SHORT, 12) == by_cpu
        until(lambda: decided.places() == [["cpu0"], ["gpu0"], ["cpu0"]])
        assert by_gpu == checked(checkpoint, LONG, 30)
        assert by_cpu != checked(checkpoint, SHORT, 12), "a CPU node computes the model"
        nodes = {one["id"]: one for one in daemon.http.get("/api/v1/nodes").json()}
        assert "no model is computed here" in nodes["gpu0"]["caveats"][0]
    assert "Traceback" not in daemon.log


def test_a_request_that_moves_between_devices_goes_on_exactly(tmp_path: Path, tiny_models_dir: Path) -> None:
    checkpoint = tiny_models_dir / MODEL
    nodes = stand_in("cpu0", tmp_path, iteration_overhead_s=0.004) + stand_in("gpu0", tmp_path)
    prompts = [[number, *SHORT] for number in range(4)]
    expected = [checked(checkpoint, prompt, 300) for prompt in prompts]
    with (
        DaemonProcess(tmp_path, [checkpoint], settings=EXACT + PROMISE + nodes) as daemon,
        Decided(daemon) as decided,
        ThreadPoolExecutor(4) as pool,
    ):
        daemon.await_nodes()
        streams = [pool.submit(complete, daemon, prompt, 300) for prompt in prompts]
        until(lambda: tokens_out(daemon) > 20)
        daemon.http.post("/api/v1/nodes/cpu0/drain").raise_for_status()
        until(lambda: tokens_out(daemon) > 120)
        daemon.http.delete("/api/v1/nodes/cpu0/drain").raise_for_status()
        os.kill(pid_of(daemon, "gpu0"), signal.SIGKILL)
        assert [one.result() for one in streams] == expected
        until(lambda: decided.places() == [["cpu0", "gpu0", "cpu0"]] * 4)
    assert "Traceback" not in daemon.log


def tokens_out(daemon: DaemonProcess) -> int:
    """Of whoever has least."""
    return min((one["tokens_out"] for one in daemon.http.get("/api/v1/requests").json()), default=0)


def pid_of(daemon: DaemonProcess, node: str) -> int:
    (line,) = [line for line in daemon.log.splitlines() if f"worker {node}: process" in line]
    return int(line.rpartition(" ")[2])
