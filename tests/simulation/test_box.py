"""Which box is simulated, and how fast is it?"""

import msgspec
import pytest

from llmhostd.compute.estimator import ProfiledEstimator
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.model import Slo
from llmhostd.simulator.box import complete, make_box, read_box
from llmhostd.simulator.replay import simulate
from llmhostd.simulator.roofline import Roofline, profile_on


def test_sizes_come_in_turn():
    box = make_box(models=5, sizes=("160m", "1b"), nodes=2, slo=Slo(ttft_s=1.0, tpot_s=0.1))
    assert [spec.shape.architecture.layers for spec in box.models] == [12, 22, 12, 22, 12]
    assert [node.id for node in box.nodes] == ["cpu0", "cpu1"]
    assert box.models[0].slo.ttft_s == 1.0


def test_an_unknown_size_says_which_there_are():
    with pytest.raises(OperatorError, match="no model size 7b; there are: 160m, 500m, 1b"):
        make_box(models=1, sizes=("160m", "7b"))


def test_a_box_file_brings_measured_profiles(tmp_path):
    box = complete(make_box(models=2), Roofline())
    slow = complete(make_box(models=2), Roofline(memory_bytes_per_s=4e9))
    for name, one in (("fast", box), ("slow", slow)):
        (tmp_path / name).write_bytes(msgspec.json.encode(one))
    assert read_box(tmp_path / "fast") == box
    fast_run, slow_run = (simulate(box=tmp_path / name, requests=20, rate=1.0) for name in ("fast", "slow"))
    assert slow_run.tpot.p50 > 3 * fast_run.tpot.p50


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "truncated"),
        ('{"nodes": [], "models": []}', "missing required field `profiles`"),
        ('{"nodes": 1, "models": [], "profiles": []}', r"Expected `array`, got `int` - at `\$.nodes`"),
    ],
)
def test_a_box_file_that_is_none_is_an_error_for_the_operator(tmp_path, text, why):
    (tmp_path / "box.json").write_text(text)
    with pytest.raises(OperatorError, match=f"box.json cannot be used: .*{why}"):
        read_box(tmp_path / "box.json")


def test_a_missing_box_file_is_an_error_for_the_operator(tmp_path):
    with pytest.raises(OperatorError, match="No such file"):
        read_box(tmp_path / "box.json")


def test_the_roofline_reads_weights_for_one_token_and_computes_for_many():
    shape = make_box(models=1, sizes=("1b",)).models[0].shape
    roofline = Roofline(memory_bytes_per_s=20e9, operations_per_s=1e12, iteration_overhead_s=0.0)
    estimator = ProfiledEstimator(profile_on(roofline, shape, "box"))
    decode_s = estimator.iteration_s(prefill=(), decode_batch=1, decode_context=64)
    assert decode_s == pytest.approx(shape.weight_bytes / 20e9, rel=0.05)
    prefill_s = estimator.iteration_s(prefill=((512, 0),), decode_batch=0, decode_context=0)
    assert prefill_s == pytest.approx(shape.weight_bytes * 512 / 1e12, rel=0.05)
