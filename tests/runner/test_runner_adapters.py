"""Requests of several adapters on one base: in f32, each yields the tokens that merged weights yield."""

from pathlib import Path

import pytest
from drive import Driver, alone
from goldens.adapters import adapter_config, merged_checkpoint, seeded_adapter
from goldens.families import CASES, Case, prompt
from goldens.seeded import seeded_checkpoint

from llmhostd.checkpoints.adapter import linear_names
from llmhostd.checkpoints.architecture import parse_architecture
from llmhostd.domain.errors import EngineError
from llmhostd.domain.hardware import NodeSpec
from llmhostd.domain.ids import HardwareKey, NodeId, RequestId
from llmhostd.domain.model import AdapterSlots, ComputePrecision, KvPrecision
from llmhostd.domain.request import Sampling
from llmhostd.engines.discovery import find_engine
from llmhostd.engines.interface import Engine, LoadOptions
from llmhostd.engines.runner import PlanError, Runner
from llmhostd.loader.adapter import AdapterWeights, open_adapter

GREEDY = Sampling(max_tokens=20, temperature=0.0, ignore_eos=True)
DRAWN = Sampling(max_tokens=20, temperature=0.9, top_p=0.95, seed=5, ignore_eos=True)
BLOCK = 32
NAMES = ("", "one", "two")
CONFIGS = {
    "one": adapter_config(rank=4, alpha=8),
    "two": adapter_config(rank=2, alpha=6, targets=("v_proj", "up_proj")),
}


@pytest.fixture(scope="module")
def engine() -> Engine:
    spec = NodeSpec(
        id=NodeId("cpu0"), engine="openvino", hardware_key=HardwareKey("here"), cores=(0,), memory_bytes=1 << 30
    )
    return find_engine("openvino")(spec)


def runner_of(engine: Engine, checkpoint: Path, slots: int = 0) -> Runner:
    room = AdapterSlots(slots=slots, rank=4, modules=linear_names()) if slots else None
    options = LoadOptions(compute=ComputePrecision.F32, kv=KvPrecision.F32, threads=1, adapters=room)
    runner = Runner(engine.load(checkpoint, options))
    runner.resize(40)
    return runner


class Family:
    """A base, its adapters, and a runner of merged weights for each of them."""

    def __init__(self, engine: Engine, case: Case, directory: Path) -> None:
        self.case = case
        self.base = seeded_checkpoint(directory / "base", case.config, case.seed)
        self.adapters: dict[str, AdapterWeights] = {}
        self.merged = {"": runner_of(engine, self.base)}
        for seed, (name, config) in enumerate(CONFIGS.items()):
            path = seeded_adapter(directory / name, case.config, seed, config=config)
            self.adapters[name] = open_adapter(path, parse_architecture(case.config))
            merged = merged_checkpoint(directory / f"merged-{name}", case.config, case.seed, config, seed)
            self.merged[name] = runner_of(engine, merged)


@pytest.fixture(scope="module", params=["llama", "mistral-window", "qwen2", "qwen3"])
def family(request: pytest.FixtureRequest, engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Family:
    case = next(case for case in CASES if case.name == request.param)
    return Family(engine, case, tmp_path_factory.mktemp(case.name))


def test_tokens_are_those_of_merged_weights(engine: Engine, family: Family) -> None:
    system = prompt(family.case, 2 * BLOCK)
    tails = (prompt(family.case, 9), prompt(family.case, 21))
    contexts = {(name, place): system + tail for name in NAMES for place, tail in enumerate(tails)}
    expected = {
        f"{name}{place}": alone(family.merged[name], context, DRAWN if place else GREEDY)
        for (name, place), context in contexts.items()
    }
    assert len({tuple(expected[f"{name}0"]) for name in NAMES}) == 3

    runner = runner_of(engine, family.base, slots=2)
    driver = Driver(runner)
    for name in NAMES:
        assert driver.submit(f"{name}0", contexts[name, 0], GREEDY, adapter=family.adapters.get(name)) == 0
    driver.step({"0": 64, "one0": 32, "two0": 73})
    # What one adapter, or the base, has computed is a prefix for its own requests only.
    cached = [driver.submit(f"{name}1", contexts[name, 1], DRAWN, adapter=family.adapters.get(name)) for name in NAMES]
    assert cached == [64, 32, 64]
    driver.step({"one0": 41, "two1": 7, "0": 2})
    assert driver.match_again() == [("one1", 64)]
    for _ in range(4):
        driver.step(dict.fromkeys(driver.pending, 16))
    moved = driver.outputs[RequestId("two1")].copy()
    driver.drop("two1")
    driver.submit("two1", contexts["two", 1] + moved, DRAWN, len(moved), family.adapters["two"])
    driver.finish()
    driver.outputs[RequestId("two1")] = moved + driver.outputs[RequestId("two1")]
    assert driver.outputs == expected


def test_adapters_take_turns_in_one_slot(engine: Engine, family: Family) -> None:
    context = prompt(family.case, 40)
    runner = runner_of(engine, family.base, slots=1)
    driver = Driver(runner)
    cached = []
    for name in ("one", "two", ""):
        cached.append(driver.submit(name, context, GREEDY, adapter=family.adapters.get(name)))
        driver.step({name: 40})
    with pytest.raises(PlanError, match="an iteration has 2 adapters; there are 1 slots"):
        driver.step({"one": 1, "two": 1})
    while driver.pending:
        for name in ("one", "two"):
            driver.step({name: 1, "": 1} if "" in driver.pending else {name: 1})
    for name in NAMES:
        assert driver.outputs[RequestId(name)] == alone(family.merged[name], context, GREEDY)
    # Blocks are still those of the adapter that left and came back.
    cached.append(driver.submit("again", context, GREEDY, adapter=family.adapters["one"]))
    assert cached == [0, 0, 0, BLOCK]


def test_an_adapter_that_cannot_be_placed_costs_nobody_else(engine: Engine, family: Family, tmp_path: Path) -> None:
    config = adapter_config(rank=5)
    wide = open_adapter(
        seeded_adapter(tmp_path / "wide", family.case.config, 9, config=config), parse_architecture(family.case.config)
    )
    context = prompt(family.case, 40)
    driver = Driver(runner_of(engine, family.base, slots=1))
    driver.submit("wide", context, GREEDY, adapter=wide)
    driver.submit("one", context, GREEDY, adapter=family.adapters["one"])
    with pytest.raises(EngineError, match="rank 5 does not fit"):
        driver.step({"wide": 40})
    driver.drop("wide")
    driver.finish()
    assert driver.outputs[RequestId("one")] == alone(family.merged["one"], context, GREEDY)
    with pytest.raises(PlanError, match="without room for adapters"):
        family.merged[""].submit(RequestId("two"), context, GREEDY, adapter=family.adapters["one"])
