"""Predictions are held against what a real engine takes; loads are what they say."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmhostd_openvino import open_engine

from llmhostd.compute.estimator import ProfiledEstimator
from llmhostd.daemon.nodes import node_layout
from llmhostd.domain.ids import ModelName
from llmhostd.domain.model import ComputePrecision, KvPrecision, ModelSpec, ModelState, Slo
from llmhostd.engines.interface import Floats, Iteration, LoadOptions
from llmhostd.engines.runner import Runner
from llmhostd.loader.safetensors import describe
from llmhostd.worker.alone import load_alone, measure_alone
from llmhostd.worker.timing import Stopwatch
from llmhostd.worker.verify import Deviation, Kind, mean_deviation, predict, random_loads, verify


@given(seed=st.integers(0, 2**32), longest=st.integers(2, 200_000), each=st.integers(1, 20))
def test_random_loads_fit_the_model_and_come_in_equal_shares(seed: int, longest: int, each: int) -> None:
    loads = random_loads(seed, each, longest)
    assert loads == random_loads(seed, each, longest)
    for kind in Kind:
        of_kind = [one for one in loads if one.kind is kind]
        assert len(of_kind) == each
        assert all(bool(one.prefill) is (kind is not Kind.DECODE) for one in of_kind)
        assert all(bool(one.contexts) is (kind is not Kind.PREFILL) for one in of_kind)
    for past, tokens in (row for one in loads for row in one.rows):
        assert past >= 0
        assert tokens >= 1
        assert past + tokens <= longest


def test_a_model_is_measured_and_verified_without_a_daemon(tiny_models_dir: Path) -> None:
    path = tiny_models_dir / "tiny-llama"
    shape = describe(path).shape(ComputePrecision.F32, KvPrecision.U8)
    model = ModelSpec(name=ModelName("tiny"), shape=shape, slo=Slo(ttft_s=2.0, tpot_s=0.2))
    (node,) = node_layout().nodes
    hosted = load_alone(node, model, path)
    seen: list[tuple[int, int]] = []
    profile = measure_alone(hosted, node, lambda done, total: seen.append((done, total)))
    assert hosted.state is ModelState.RESIDENT
    assert sorted({done for done, _ in seen}) == list(range(seen[-1][1] + 1)), "the first turn packs"
    assert (profile.shape_key, profile.hardware_key) == (shape.key, node.hardware_key)

    estimator = ProfiledEstimator(profile)
    loads = random_loads(1, 3, shape.architecture.max_context_tokens)
    deviations = verify(hosted.running, estimator, loads, lambda: None)
    assert [one.load for one in deviations] == loads
    assert all(
        one.measured_s > 0 and one.again_s > 0 and one.predicted_s == predict(estimator, one.load) for one in deviations
    )
    hosted.take_apart(ModelState.UNLOADING).unload()


def test_a_chunk_is_timed_behind_another_count_and_a_decode_behind_the_same(tiny_models_dir: Path) -> None:
    """As they are served."""
    instance = open_engine(node_layout().nodes[0]).load(
        tiny_models_dir / "tiny-llama", LoadOptions(compute=ComputePrecision.F32, kv=KvPrecision.U8, threads=1)
    )
    runner = Runner(instance)
    runner.resize(8)
    counts, run = [], instance.run

    def counted(iteration: Iteration) -> Floats:
        counts.append(len(iteration.positions))
        return run(iteration)

    instance.run = counted  # type: ignore[method-assign]
    stopwatch = Stopwatch(runner)
    for _ in range(2):
        assert stopwatch.seconds([(3, 40)]) > 0.0
    for _ in range(2):
        assert stopwatch.seconds([(30, 1)] * 5) > 0.0
    assert counts == [1, 40, 1, 40, 5, 5]
    instance.unload()


def test_kv_that_imagined_requests_fill_is_written_once_and_again_in_a_pool_that_was_resized(
    tiny_models_dir: Path,
) -> None:
    """What was just written lies in a cache, as no KV does that is served."""
    instance = open_engine(node_layout().nodes[0]).load(
        tiny_models_dir / "tiny-llama", LoadOptions(compute=ComputePrecision.F32, kv=KvPrecision.U8, threads=1)
    )
    runner = Runner(instance)
    runner.resize(8)
    written: list[int] = []
    resize_kv = instance.resize_kv

    def counted(blocks: int, moves: Sequence[tuple[int, int]]) -> None:
        written.append(len(moves))
        resize_kv(blocks, moves)

    instance.resize_kv = counted  # type: ignore[method-assign]
    stopwatch = Stopwatch(runner)
    block_tokens = instance.block_tokens
    for tokens in (2 * block_tokens, 2 * block_tokens, 3 * block_tokens):
        stopwatch.seconds([(0, tokens)])
    assert written == [2, 1]
    runner.resize(9)
    stopwatch.seconds([(0, block_tokens)])
    assert written == [2, 1, 0, 1]
    instance.unload()


def test_the_mean_is_of_relative_errors_of_one_kind() -> None:
    loads = random_loads(1, 2, 4096)
    predicted = {Kind.PREFILL: 1.1, Kind.DECODE: 0.5, Kind.MIXED: 1.0}
    deviations = [Deviation(load=one, predicted_s=predicted[one.kind], measured_s=1.0, again_s=1.2) for one in loads]
    assert mean_deviation(deviations, Kind.PREFILL) == pytest.approx(0.1)
    assert mean_deviation(deviations, Kind.DECODE) == pytest.approx(0.5)
    assert mean_deviation(deviations, Kind.MIXED) == 0.0
    assert all(one.repeated == pytest.approx(0.2) for one in deviations)
