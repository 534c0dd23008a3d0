"""An estimate of the never measured, from the measured: near enough to serve with, and not too fast."""

import msgspec
import pytest

from llmhostd.compute.estimator import ProfiledEstimator
from llmhostd.compute.prior import PriorPolicy, estimate, learn, matrix_elements
from llmhostd.domain.ids import HardwareKey
from llmhostd.domain.model import WeightFormat
from llmhostd.simulator.box import complete, make_box
from llmhostd.simulator.roofline import Roofline

BOX = complete(make_box(models=3, sizes=("160m", "500m", "1b")), Roofline())
SHAPES = {name: spec.shape for name, spec in zip(("160m", "500m", "1b"), BOX.models, strict=True)}
PROFILES = {name: next(one for one in BOX.profiles if one.shape_key == shape.key) for name, shape in SHAPES.items()}
HERE = HardwareKey("roofline")
LOADS = [
    (((512, 0),), 0, 0), (((100, 1000),), 0, 0), ((), 1, 100), ((), 16, 500), ((), 32, 2000), (((300, 200),), 8, 400),
]  # fmt: skip


def ratios(name, *others, policy=None):
    """How many times what it really takes the estimate says, for several loads."""
    known = [(SHAPES[other], PROFILES[other]) for other in others]
    prior = estimate(SHAPES[name], HERE, known, policy or PriorPolicy())
    guess, truth = ProfiledEstimator(prior), ProfiledEstimator(PROFILES[name])
    return [
        guess.iteration_s(prefill=prefill, decode_batch=batch, decode_context=context)
        / truth.iteration_s(prefill=prefill, decode_batch=batch, decode_context=context)
        for prefill, batch, context in LOADS
    ]


@pytest.mark.parametrize(("name", "others"), [
    ("1b", ("160m",)), ("160m", ("1b",)), ("500m", ("160m", "1b")), ("1b", ("160m", "500m")), ("160m", ("500m", "1b")),
])  # fmt: skip
def test_it_errs_to_the_slow_side_and_not_by_much(name, others):
    said = ratios(name, *others)
    assert min(said) > 0.95
    assert max(said) < 4.0


def test_nothing_is_estimated_from_nothing():
    assert estimate(SHAPES["1b"], HERE, [], PriorPolicy()) is None


def test_it_says_that_it_was_not_measured():
    prior = estimate(SHAPES["1b"], HERE, [(SHAPES["160m"], PROFILES["160m"])], PriorPolicy())
    assert not prior.measured
    assert (prior.shape_key, prior.hardware_key) == (SHAPES["1b"].key, HERE)
    assert prior.load_s > PROFILES["160m"].load_s
    assert prior.resident_bytes >= SHAPES["1b"].weight_bytes


def test_profiles_of_the_same_format_count_before_others():
    int8 = msgspec.structs.replace(SHAPES["160m"], weights=WeightFormat.INT8)
    slow = [msgspec.structs.replace(one, seconds=one.seconds * 50) for one in PROFILES["160m"].prefill]
    other = msgspec.structs.replace(PROFILES["160m"], prefill=tuple(slow))
    alone = estimate(SHAPES["1b"], HERE, [(SHAPES["160m"], PROFILES["160m"])], PriorPolicy())
    both = estimate(SHAPES["1b"], HERE, [(int8, other), (SHAPES["160m"], PROFILES["160m"])], PriorPolicy())
    assert both == alone
    assert estimate(SHAPES["1b"], HERE, [(int8, other)], PriorPolicy()) != alone


def test_pessimism_is_a_factor():
    calm = ratios("1b", "160m", policy=PriorPolicy(pessimism=1.0))
    wary = ratios("1b", "160m", policy=PriorPolicy(pessimism=2.0))
    assert wary == pytest.approx([2 * one for one in calm])


def test_bandwidth_is_learned_from_what_sizes_differ_in():
    speed = learn([(SHAPES[name], PROFILES[name]) for name in SHAPES])
    assert speed.weight_byte_s == pytest.approx(1 / Roofline().memory_bytes_per_s, rel=0.25)
    assert speed.multiply_s == pytest.approx(2 / Roofline().operations_per_s, rel=0.25)
    assert matrix_elements(SHAPES["160m"].architecture) > 100e6
