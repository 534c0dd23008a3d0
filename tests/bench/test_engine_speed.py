"""How fast is the engine beside others on the same cores and weights?

Ours computes on a store, as `models add` makes it, in a process that is started as a worker is; peers are started
plainly.
Rows whose contender is not at hand say so. What may be given:

- LLMHOSTD_PEER_PYTHON: an interpreter with openvino-genai, or torch and transformers, or both;
- LLMHOSTD_LLAMA_BATCHED_BENCH and LLMHOSTD_LLAMA_GGUF: llama.cpp's binary of that name and a q8_0 file of a model of
  this shape (for int8).
"""

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from box import CACHE, checkpoints, store
from contender_loop import READY
from stateful_ir import write_stateful_ir

from llmhostd.checkpoints.tensors import EMBEDDING
from llmhostd.domain.model import ComputePrecision, KvPrecision, WeightFormat
from llmhostd.engines.huge_pages import with_huge_pages
from llmhostd.loader.convert import convert
from llmhostd.loader.safetensors import describe

HERE = Path(__file__).parent
THREADS = "2"
ROUNDS = 3
POINTS = ("prefill 512", "decode 1", "decode 4", "decode 16", "decode 32")
CONTEXT = 512
PEER = os.environ.get("LLMHOSTD_PEER_PYTHON", "")
LLAMA = os.environ.get("LLMHOSTD_LLAMA_BATCHED_BENCH", "")
LLAMA_GGUF = os.environ.get("LLMHOSTD_LLAMA_GGUF", "")


pytestmark = pytest.mark.timeout(1200)


class Contender(NamedTuple):
    """A name, and the command that is asked for points (`contender_loop`) in an environment."""

    name: str
    command: list[str]
    environment: dict[str, str]


def ours(checkpoint: Path, compute: str, kv: str) -> Contender:
    command = [sys.executable, str(HERE / "contender_ours.py"), str(checkpoint), compute, kv, THREADS]
    return Contender(f"llmhostd {compute} kv {kv}", command, with_huge_pages(os.environ))


def has(module: str) -> bool:
    """Whether the peers' interpreter can import a module."""
    return (
        bool(PEER)
        and subprocess.run([PEER, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0
    )


def peers(checkpoint: Path, ir: Path) -> list[Contender]:
    """List the peers at hand, and say which are not."""
    found = []
    if has("openvino_genai"):
        write_ir(checkpoint, ir)
        for kv in ("u8", "bf16"):
            command = [PEER, str(HERE / "contender_genai.py"), str(ir), "bf16", kv, THREADS]
            found.append(Contender(f"openvino-genai bf16 kv {kv}", command, dict(os.environ)))
    else:
        print("no row for openvino-genai: LLMHOSTD_PEER_PYTHON names no interpreter that imports openvino_genai")
    if has("torch, transformers"):
        command = [PEER, str(HERE / "contender_transformers.py"), str(checkpoint), "bf16", THREADS]
        found.append(Contender("transformers bf16", command, dict(os.environ)))
    else:
        print("no row for transformers: LLMHOSTD_PEER_PYTHON names no interpreter that imports torch and transformers")
    return found


def write_ir(checkpoint: Path, directory: Path) -> None:
    if not (directory / "openvino_model.xml").exists():
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
        write_stateful_ir(checkpoint, directory)


Rounds = dict[str, dict[str, list[float]]]
"""Seconds of each round, by point, by contender."""


@contextmanager
def asked(contenders: list[Contender]) -> Iterator[dict[str, Callable[[str], float]]]:
    """Have all of them running; each says, of a point, the median of its seconds."""
    with ExitStack() as running:
        processes = {}
        for one in contenders:
            process = running.enter_context(
                subprocess.Popen(
                    one.command, env=one.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            running.callback(process.kill)
            processes[one.name] = process
            while (line := _line(one.name, process)) != READY:
                print(one.name, line)

        def ask(name: str, point: str) -> float:
            process = processes[name]
            assert process.stdin is not None
            process.stdin.write(f"{point}\n")
            process.stdin.flush()
            while not (line := _line(name, process)).startswith("["):
                print(name, line)
            return statistics.median(json.loads(line))

        yield {one.name: partial(ask, one.name) for one in contenders}


def _line(name: str, process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"{name} ended"
    return line.strip()


def alternate(contenders: list[Contender]) -> Rounds:
    """Measure every point of all contenders in turn, and all points once more, in the other order."""
    with asked(contenders) as ask:
        for each in ask.values():
            each(POINTS[1])
        names = list(ask)
        rounds: Rounds = {name: {point: [] for point in POINTS} for name in names}
        for turn in range(ROUNDS):
            for point in POINTS:
                for name in names if turn % 2 else reversed(names):
                    rounds[name][point].append(ask[name](point))
        return rounds


def table(results: Rounds, base: str) -> None:
    """Print milliseconds and, against `base` in the same round, how many times longer the others take; medians."""
    print(f"\n{'ms (times the first)':28}" + "".join(f"{point:>18}" for point in POINTS))
    for name, rounds in results.items():
        cells = []
        for point in POINTS:
            times = statistics.median(
                one / other for one, other in zip(rounds[point], results[base][point], strict=True)
            )
            cells.append(f"{statistics.median(rounds[point]) * 1e3:9.2f} ({times:5.2f})")
        print(f"{name:28}" + "".join(f"{cell:>18}" for cell in cells))


def read_gb_per_s() -> float:
    """Measure the read bandwidth of two threads: sums over arrays far larger than any cache; the best of several."""
    arrays = [np.ones(1 << 26, np.float32) for _ in range(int(THREADS))]
    best = 0.0
    for _ in range(6):
        threads = [threading.Thread(target=one.sum) for one in arrays]
        begun = time.perf_counter()
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        best = max(best, sum(one.nbytes for one in arrays) / (time.perf_counter() - begun) / 1e9)
    return best


def test_bf16(capsys: pytest.CaptureFixture[str]) -> None:
    (checkpoint,) = checkpoints(1)
    with capsys.disabled():
        contenders = [ours(store(), "bf16", kv) for kv in ("u8", "bf16")]
        contenders += peers(checkpoint, CACHE / "stateful-ir")
        before = read_gb_per_s()
        results = alternate(contenders)
        table(results, contenders[0].name)
        bandwidth = max(before, read_gb_per_s())
        described = describe(checkpoint)
        shape = described.shape(ComputePrecision.BF16, KvPrecision.U8)
        table_bytes = described.tensors[EMBEDDING].end - described.tensors[EMBEDDING].begin
        step_bytes = shape.weight_bytes - table_bytes + CONTEXT * shape.kv_bytes_per_token
        rate = step_bytes / statistics.median(results[contenders[0].name]["decode 1"]) / 1e9
        print(
            f"decode 1 reads {step_bytes / 1e6:.0f} MB of weights and KV per step: {rate:.1f} GB/s, "
            f"{rate / bandwidth:.0%} of the {bandwidth:.1f} GB/s that {THREADS} threads read"
        )


def test_quantised(capsys: pytest.CaptureFixture[str]) -> None:
    (plain,) = checkpoints(1)
    contenders = [ours(store(), "bf16", "u8")]
    for kind in (WeightFormat.INT8, WeightFormat.INT4):
        small = CACHE / f"156m-{kind}"
        if not small.exists():
            convert(plain, small, kind)
        for compute in ("f32", "bf16"):
            contenders.append(ours(small, compute, "u8")._replace(name=f"llmhostd {kind} {compute} kv u8"))
    with capsys.disabled():
        if LLAMA and LLAMA_GGUF:
            contenders.append(Contender("llama.cpp q8_0", llama_command(), dict(os.environ)))
        else:
            print("\nno row for llama.cpp: set LLMHOSTD_LLAMA_BATCHED_BENCH and LLMHOSTD_LLAMA_GGUF")
        table(alternate(contenders), contenders[1].name)


def llama_command() -> list[str]:
    return [sys.executable, str(HERE / "contender_llama.py"), LLAMA, LLAMA_GGUF, THREADS]
