"""The same promises with the real engine: in f32, what runs beside a request changes none of its tokens."""

from pathlib import Path

import numpy as np
import pytest
from drive import Driver, alone

from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import HardwareKey, NodeId, RequestId
from llmhostd.domain.model import ComputePrecision, KvPrecision
from llmhostd.domain.request import Sampling
from llmhostd.engines.discovery import find_engine
from llmhostd.engines.interface import Engine, LoadOptions
from llmhostd.engines.runner import Runner

GREEDY = Sampling(max_tokens=40, temperature=0.0, ignore_eos=True)
DRAWN = Sampling(max_tokens=40, temperature=0.9, top_p=0.95, seed=5, frequency_penalty=0.2, ignore_eos=True)
BLOCK = 32


@pytest.fixture(scope="module")
def engine() -> Engine:
    spec = NodeSpec(
        id=NodeId("cpu0"), engine="openvino", hardware_key=HardwareKey("here"), cores=(0,), memory_bytes=1 << 30
    )
    return find_engine("openvino")(spec)


@pytest.fixture(params=["tiny-llama3", "tiny-mistral", "tiny-qwen2", "tiny-qwen3"])
def runner(request: pytest.FixtureRequest, engine: Engine, tiny_models_dir: Path) -> Runner:
    options = LoadOptions(compute=ComputePrecision.F32, kv=KvPrecision.F32, threads=1)
    runner = Runner(engine.load(tiny_models_dir / request.param, options))
    runner.resize(40)
    return runner


def prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 320, length).tolist()


def forget_prefixes(runner: Runner) -> None:
    runner.resize(0)
    runner.resize(40)


def test_batches_chunks_prefixes_moves_and_resizes_change_no_token(runner: Runner) -> None:
    system = prompt(0, 2 * BLOCK)
    requests = {
        "long": (prompt(1, 150), GREEDY),
        "drawn": (prompt(2, 47), DRAWN),
        "first": (system + prompt(3, 9), GREEDY),
        "second": (system + prompt(4, 21), DRAWN),
    }
    expected = {}
    for name, (context, sampling) in requests.items():
        forget_prefixes(runner)
        expected[name] = alone(runner, context, sampling)
    forget_prefixes(runner)

    driver = Driver(runner)
    for name in ("long", "drawn", "first"):
        driver.submit(name, *requests[name])
    driver.step({"drawn": 47, "long": 32})
    driver.step({"drawn": 1, "long": 64, "first": 64})
    assert driver.submit("second", *requests["second"]) == 2 * BLOCK
    for _ in range(6):
        driver.step(dict.fromkeys(driver.pending, 32))
    moved = driver.outputs[RequestId("drawn")].copy()
    driver.drop("drawn")
    runner.resize(14)
    driver.finish()
    runner.resize(60)
    context, sampling = requests["drawn"]
    driver.submit("drawn", context + moved, sampling, len(moved))
    driver.finish()
    driver.outputs[RequestId("drawn")] = moved + driver.outputs[RequestId("drawn")]
    assert driver.outputs == expected
