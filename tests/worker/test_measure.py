"""A profile is measured run by run, and whoever comes ends the run; yet every sample ends."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from llmhostd_openvino import open_engine

from llmhostd.daemon.nodes import node_layout
from llmhostd.domain.model import ComputePrecision, KvPrecision
from llmhostd.engines.interface import Floats, Iteration, LoadOptions
from llmhostd.engines.runner import Runner
from llmhostd.worker.measure import Measurement, MeasurePolicy

BLOCKS = 64


@pytest.fixture
def runner(tiny_models_dir: Path) -> Iterator[Runner]:
    instance = open_engine(node_layout().nodes[0]).load(
        tiny_models_dir / "tiny-llama", LoadOptions(compute=ComputePrecision.F32, kv=KvPrecision.U8, threads=1)
    )
    one = Runner(instance)
    one.resize(BLOCKS)
    yield one
    instance.unload()


def test_a_turn_is_one_run_and_a_sample_ends_when_its_runs_agree(runner: Runner) -> None:
    policy = MeasurePolicy(agree=float("inf"), enough_s=float("inf"), enough_first_s=float("inf"))
    measurement, ended = Measurement(runner, policy), []
    while not measurement.stage_ended:
        before = measurement.done
        measurement.run(lambda: False)
        ended.append(measurement.done - before)
    assert ended == [0, 1] * measurement.done, "two runs agree in any case"
    assert {one.chunk_tokens for one in measurement.prefill} == {8, 32, 128}


def test_whoever_comes_ends_a_run_but_no_sample_waits_for_ever(runner: Runner) -> None:
    policy = MeasurePolicy(repeats=1, most_broken_off=2)
    measurement, computed, run_unless = Measurement(runner, policy), [], runner.instance.run_unless  # type: ignore[attr-defined]

    def counted(iteration: Iteration, waits: object) -> Floats | None:
        logits: Floats | None = run_unless(iteration, waits)
        computed.append(logits is not None)
        return logits

    runner.instance.run_unless = counted  # type: ignore[attr-defined]
    done = []
    for _ in range(6):
        measurement.run(lambda: True)
        done.append(measurement.done)
    assert computed == [False] * 4
    assert done == [0, 0, 1, 1, 1, 2], "the third run of each is to the end"
    measurement.run(lambda: False)
    assert measurement.done == 3
    assert computed[4:] == [True]
