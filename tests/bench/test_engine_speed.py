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
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from box import CACHE, checkpoints, store
from stateful_ir import write_stateful_ir

from llmhostd.checkpoints.tensors import EMBEDDING
from llmhostd.domain.model import ComputePrecision, KvPrecision, WeightFormat
from llmhostd.engines.huge_pages import with_huge_pages
from llmhostd.loader.convert import convert
from llmhostd.loader.safetensors import describe

HERE = Path(__file__).parent
THREADS = "2"
ROUNDS = 2
POINTS = ("prefill 512", "decode 1", "decode 4", "decode 16", "decode 32")
CONTEXT = 512
PEER = os.environ.get("LLMHOSTD_PEER_PYTHON", "")
LLAMA = os.environ.get("LLMHOSTD_LLAMA_BATCHED_BENCH", "")
LLAMA_GGUF = os.environ.get("LLMHOSTD_LLAMA_GGUF", "")


class Contender(NamedTuple):
    """A name, and the command that measures it once in an environment."""

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


def alternate(contenders: list[Contender]) -> dict[str, dict[str, float]]:
    """Measure A B C A B C ...; returns the median of the rounds, seconds by point by contender."""
    seen: dict[str, list[dict[str, float]]] = {one.name: [] for one in contenders}
    for _ in range(ROUNDS):
        for one in contenders:
            done = subprocess.run(one.command, env=one.environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{one.name}: {done.stderr[-2000:]}"
            seen[one.name].append(json.loads(done.stdout.splitlines()[-1]))
    return {
        name: {point: statistics.median(one[point] for one in rounds) for point in rounds[0]}
        for name, rounds in seen.items()
    }


def table(results: dict[str, dict[str, float]], base: str) -> None:
    """Print milliseconds and, against `base`, how many times longer the others take."""
    print(f"\n{'ms (times the first)':28}" + "".join(f"{point:>18}" for point in POINTS))
    for name, seconds in results.items():
        cells = [
            f"{seconds[point] * 1e3:9.2f} ({seconds[point] / results[base][point]:5.2f})" if point in seconds else ""
            for point in POINTS
        ]
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
        rate = step_bytes / results[contenders[0].name]["decode 1"] / 1e9
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
