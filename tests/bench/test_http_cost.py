"""What does HTTP add to the engine, per token and to the first one? One caller, batch 1, 156M bf16.

The engine alone runs in a process of its own that was started like a worker: same threads, same cores, same pages.
"""

import asyncio
import itertools
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from box import Box, box, checkpoints
from llmhostd_openvino import open_engine

from llmhostd.bench.client import Endpoint, Target, ask, prepare
from llmhostd.bench.schedule import PlannedRequest
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import HardwareKey, NodeId, RequestId
from llmhostd.domain.model import ComputePrecision, KvPrecision
from llmhostd.domain.node_events import RowPlan
from llmhostd.domain.request import Sampling
from llmhostd.engines.huge_pages import with_huge_pages
from llmhostd.engines.interface import LoadOptions
from llmhostd.engines.runner import Runner

PROMPT, OUTPUT, ROUNDS = 128, 200, 25


class Bare:
    """The engine and the runner alone."""

    def __init__(self, checkpoint: Path) -> None:
        spec = NodeSpec(
            id=NodeId("cpu0"), engine="openvino", hardware_key=HardwareKey("here"), cores=(0, 1), memory_bytes=8 << 30
        )
        options = LoadOptions(compute=ComputePrecision.BF16, kv=KvPrecision.U8, threads=2)
        self.runner = Runner(open_engine(spec).load(checkpoint, options))
        self.runner.resize(64)
        self.turn = 0

    def generate(self) -> tuple[float, float]:
        """Seconds to the first token, and per token after it."""
        self.turn += 1
        who = RequestId(f"r{self.turn}")
        prompt = [(self.turn * 7919 + i * 31) % 30000 + 3 for i in range(PROMPT)]
        self.runner.submit(who, prompt, Sampling(max_tokens=OUTPUT, temperature=0.0, ignore_eos=True))
        stamps = [time.perf_counter()]
        for step in range(OUTPUT):
            self.runner.run([RowPlan(request_id=who, tokens=1 if step else PROMPT, sample=True)])
            stamps.append(time.perf_counter())
        gaps = [after - before for before, after in itertools.pairwise(stamps[1:])]
        return stamps[1] - stamps[0], statistics.mean(gaps)


def _serve(checkpoint: Path, wire: Connection) -> None:
    bare = Bare(checkpoint)
    while wire.recv():
        wire.send(bare.generate())


@contextmanager
def bare_process(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], tuple[float, float]]]:
    """What generates once whenever it is called."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    for name, value in with_huge_pages(os.environ).items():
        monkeypatch.setenv(name, value)
    process = spawn.Process(target=_serve, args=(checkpoint, theirs), daemon=True)
    process.start()

    def generate() -> tuple[float, float]:
        ours.send(True)
        return ours.recv()

    yield generate
    ours.send(False)
    process.join()


def over_http(here: Box, model: str, turn: int) -> tuple[float, float]:
    """The same through `POST /v1/completions`, streamed."""
    prompt = [(turn * 104729 + i * 37) % 30000 + 3 for i in range(PROMPT)]
    planned = PlannedRequest(due_s=0.0, model=model, input_tokens=PROMPT, output_tokens=OUTPUT)
    target = Target(
        url=here.url, endpoint=Endpoint.COMPLETIONS, ignore_eos=True, extra={"temperature": 0, "prompt": prompt}
    )
    began = time.perf_counter()
    record = asyncio.run(ask(target, prepare(target, planned, ""), lambda: time.perf_counter() - began))
    assert record.tokens_out == OUTPUT, record
    return record.ttft_s, record.tpot_s


def test_http_against_the_bare_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = checkpoints(1)[0]
    with box(tmp_path / "state", [model]) as here, bare_process(model, monkeypatch) as generate:
        over_http(here, model.name, 0)
        here.settle()
        generate()
        over_http(here, model.name, 0)
        pairs = [(generate(), over_http(here, model.name, turn)) for turn in range(1, ROUNDS + 1)]
    per_token = [http[1] / engine[1] for engine, http in pairs]
    first = [http[0] - engine[0] for engine, http in pairs]
    with capsys.disabled():
        print(f"\nper token: HTTP / engine = {statistics.median(per_token):.3f} {[round(r, 3) for r in per_token]}")
        print(
            f"first token: HTTP - engine = {statistics.median(first) * 1e3:.1f} ms {[round(f * 1e3, 1) for f in first]}"
        )
        print(f"engine: {pairs[0][0][0] * 1e3:.1f} ms, then {pairs[0][0][1] * 1e3:.2f} ms per token")
