"""The estimator against a slow twin that interpolates by hand, and the promises its callers lean on."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmhostd.compute.estimator import IterationKind, ProfiledEstimator, RoughEstimator
from llmhostd.compute.interpolation import MonotoneGrid
from llmhostd.compute.workload import InstanceLoad
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.ids import HardwareKey, InstanceId, ShapeKey
from llmhostd.domain.profile import DecodeSample, PrefillSample, Profile

CHUNKS, PASTS = (8, 32, 128, 512), (0, 256, 1024)
BATCHES, CONTEXTS = (1, 4, 16), (64, 512, 2048)


def profile_of(prefill_s, decode_s, **more):
    chunks = [(c, p) for c in CHUNKS for p in PASTS]
    batches = [(b, c) for b in BATCHES for c in CONTEXTS]
    return Profile(
        shape_key=ShapeKey("llama-test"), hardware_key=HardwareKey("box"),
        prefill=tuple(PrefillSample(chunk_tokens=c, past_tokens=p, seconds=prefill_s(c, p)) for c, p in chunks),
        decode=tuple(DecodeSample(batch=b, context_tokens=c, seconds=decode_s(b, c)) for b, c in batches),
        load_s=1.0, first_run_s=0.3, resident_bytes=1 << 30, warm_bytes=1 << 24, **more,
    )  # fmt: skip


def smooth():
    return profile_of(lambda c, p: 0.008 + c * 2e-4 + c * p * 1e-8, lambda b, c: 0.01 + b * 1e-4 + b * c * 1e-7)


def noisy(draw_s):
    prefill = {(c, p): draw_s() for c in CHUNKS for p in PASTS}
    decode = {(b, c): draw_s() for b in BATCHES for c in CONTEXTS}
    return profile_of(lambda c, p: prefill[c, p], lambda b, c: decode[b, c])


profiles = st.builds(lambda data: noisy(iter(data).__next__), st.lists(st.floats(1e-4, 3.0), min_size=21, max_size=21))
prefills = st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 6000)), min_size=0, max_size=3).map(tuple)


def twin(points, x, y):
    """Interpolate first along y, then along x, on the grid as it stands; `x`, `y` inside it."""
    xs, ys = sorted({a for a, _ in points}), sorted({b for _, b in points})
    left = max(a for a in xs if a <= x)
    right = min(a for a in xs if a >= x)
    low = max(b for b in ys if b <= y)
    high = min(b for b in ys if b >= y)

    def on(a):
        if low == high:
            return points[a, low]
        return (points[a, low] * (high - y) + points[a, high] * (y - low)) / (high - low)

    return on(left) if left == right else (on(left) * (right - x) + on(right) * (x - left)) / (right - left)


@given(st.integers(8, 512), st.integers(0, 1024), st.integers(1, 16), st.integers(64, 2048))
def test_interpolates_like_the_slow_twin(chunk, past, batch, context):
    profile = smooth()
    one = ProfiledEstimator(profile)
    by_hand = twin({(s.chunk_tokens, s.past_tokens): s.seconds for s in profile.prefill}, chunk, past)
    assert one.iteration_s(prefill=((chunk, past),), decode_batch=0, decode_context=0) == pytest.approx(by_hand)
    by_hand = twin({(s.batch, s.context_tokens): s.seconds for s in profile.decode}, batch, context)
    assert one.iteration_s(prefill=(), decode_batch=batch, decode_context=context) == pytest.approx(by_hand)


def test_is_exact_on_the_samples():
    profile = smooth()
    one = ProfiledEstimator(profile)
    for s in profile.prefill:
        assert (
            one.iteration_s(prefill=((s.chunk_tokens, s.past_tokens),), decode_batch=0, decode_context=0) == s.seconds
        )
    for d in profile.decode:
        assert one.iteration_s(prefill=(), decode_batch=d.batch, decode_context=d.context_tokens) == d.seconds


def test_continues_linearly_beyond_the_grid():
    one = ProfiledEstimator(smooth())
    for chunk, past in ((2048, 0), (512, 8192), (4096, 4096)):
        said = one.iteration_s(prefill=((chunk, past),), decode_batch=0, decode_context=0)
        assert said == pytest.approx(0.008 + chunk * 2e-4 + chunk * past * 1e-8, rel=1e-6)


@given(profiles, prefills, st.integers(0, 40), st.integers(0, 5000), st.integers(0, 3), st.integers(1, 500))
def test_more_work_never_costs_less(profile, prefill, batch, context, which, more):
    one = ProfiledEstimator(profile)
    before = one.iteration_s(prefill=prefill, decode_batch=batch, decode_context=context)
    assert before > 0 or not (prefill or batch)
    if which == 0 and prefill:
        (chunk, past), *others = prefill
        prefill = ((chunk + more, past), *others)
    elif which == 1 and prefill:
        (chunk, past), *others = prefill
        prefill = ((chunk, past + more), *others)
    elif which == 2:
        batch += more
    else:
        context += more
    after = one.iteration_s(prefill=prefill, decode_batch=batch, decode_context=context)
    assert after >= before * (1 - 1e-9)


@given(profiles, st.integers(1, 600), st.integers(0, 2000), st.integers(1, 32), st.integers(1, 4000))
def test_a_mixed_iteration_costs_at_least_each_of_its_parts(profile, chunk, past, batch, context):
    one = ProfiledEstimator(profile)
    mixed = one.iteration_s(prefill=((chunk, past),), decode_batch=batch, decode_context=context)
    alone = one.iteration_s(prefill=((chunk, past),), decode_batch=0, decode_context=0)
    decode = one.iteration_s(prefill=(), decode_batch=batch, decode_context=context)
    assert mixed >= max(alone, decode) * (1 - 1e-9)


def test_mixed_iterations_share_the_reading_of_weights():
    one = ProfiledEstimator(smooth())
    mixed = one.iteration_s(prefill=((128, 0),), decode_batch=4, decode_context=512)
    apart = one.iteration_s(prefill=((128, 0),), decode_batch=0, decode_context=0)
    apart += one.iteration_s(prefill=(), decode_batch=4, decode_context=512)
    assert mixed < apart


def test_learns_each_table_and_keeps_what_it_learned():
    one = ProfiledEstimator(smooth())
    fresh = one.iteration_s(prefill=((128, 0),), decode_batch=0, decode_context=0)
    for _ in range(300):
        predicted = one.iteration_s(prefill=((128, 0),), decode_batch=0, decode_context=0)
        one.observe(IterationKind.PREFILL, predicted_s=predicted, actual_s=fresh * 1.4)
    assert one.profile.prefill_correction == pytest.approx(1.4, rel=1e-3)
    assert one.profile.decode_correction == 1.0
    again = ProfiledEstimator(msgspec.msgpack.decode(msgspec.msgpack.encode(one.profile), type=Profile))
    assert again.profile == one.profile
    assert again.iteration_s(prefill=((128, 0),), decode_batch=0, decode_context=0) == pytest.approx(
        fresh * 1.4, rel=1e-3
    )


@given(st.lists(st.tuples(st.sampled_from(IterationKind), st.floats(0, 100), st.floats(0, 100)), max_size=50))
def test_corrections_stay_within_their_bounds(observed):
    one = ProfiledEstimator(smooth())
    for kind, predicted, actual in observed:
        one.observe(kind, predicted_s=predicted, actual_s=actual)
    assert 0.5 <= one.profile.prefill_correction <= 3.0
    assert 0.5 <= one.profile.decode_correction <= 3.0


def test_names_what_is_wrong_with_a_profile():
    whole = smooth()
    holed = msgspec.structs.replace(
        whole, prefill=tuple(s for s in whole.prefill if (s.chunk_tokens, s.past_tokens) != (32, 256))
    )
    with pytest.raises(OperatorError, match="prefill has no sample for chunk 32, past 256"):
        ProfiledEstimator(holed)
    with pytest.raises(OperatorError, match="decode has no samples"):
        ProfiledEstimator(msgspec.structs.replace(whole, decode=()))
    with pytest.raises(OperatorError, match=r"batch 1, context 64 took -1\.0 s"):
        ProfiledEstimator(profile_of(lambda c, p: 1.0, lambda b, c: -1.0))


def test_the_rough_guess_grows_with_the_model_and_the_load():
    small, large = RoughEstimator(300_000_000), RoughEstimator(2_000_000_000)
    assert small.iteration_s(prefill=(), decode_batch=0, decode_context=0) == 0
    step = small.iteration_s(prefill=(), decode_batch=1, decode_context=100)
    assert 0 < step < small.iteration_s(prefill=((100, 0),), decode_batch=1, decode_context=100)
    assert step < large.iteration_s(prefill=(), decode_batch=1, decode_context=100)


grids = st.lists(st.lists(st.floats(0.001, 2.0), min_size=4, max_size=4), min_size=3, max_size=3)


@given(grids)
def test_a_grid_that_falls_is_put_between_what_it_says_before_and_after(rows):
    points = {(x, y): rows[x - 1][y] for x in (1, 2, 3) for y in range(4)}
    grid = MonotoneGrid(points)
    for (x, y), seconds in points.items():
        before = max(s for (a, b), s in points.items() if a <= x and b <= y)
        after = min(s for (a, b), s in points.items() if a >= x and b >= y)
        assert grid.at(x, y) == pytest.approx((before + after) / 2)
        assert before >= seconds >= after
        assert all(grid.at(x, y) <= grid.at(a, b) * (1 + 1e-12) for a, b in points if a >= x and b >= y)


def test_one_sample_that_came_out_too_high_is_not_taken_for_all_after_it():
    steady = {(x, y): 0.010 + 0.001 * x + 0.0001 * y for x in (1, 2, 4, 8) for y in range(5)}
    grid = MonotoneGrid(steady | {(1, 1): 0.020})
    assert grid.at(8, 0) == steady[8, 0]
    assert grid.at(2, 2) == pytest.approx((0.020 + steady[2, 2]) / 2)


@given(extra_s=st.floats(0.0, 1.0), times=st.integers(8, 20))
def test_what_packing_costs_is_expected_of_the_next_iteration_until_it_is_over(extra_s, times):
    plain = ProfiledEstimator(smooth())
    load = InstanceLoad(InstanceId("a"), plain)

    def predicted_s():
        return load.estimator.iteration_s(prefill=(), decode_batch=4, decode_context=512)

    settled_s = predicted_s()
    for _ in range(times):
        assert load.ran(settled=False, predicted_s=predicted_s(), actual_s=settled_s + extra_s)
    assert predicted_s() == pytest.approx(settled_s + extra_s, abs=0.01)
    assert load.estimator.iteration_s(prefill=(), decode_batch=0, decode_context=0) == 0.0
    other = ProfiledEstimator(smooth())
    load.know(other)
    assert predicted_s() == pytest.approx(settled_s + extra_s, abs=0.01)
    assert load.ran(settled=True, predicted_s=predicted_s(), actual_s=settled_s)
    assert load.estimator is other
    assert not load.ran(settled=True, predicted_s=predicted_s(), actual_s=settled_s)


def test_packing_never_makes_an_iteration_faster():
    load = InstanceLoad(InstanceId("a"), ProfiledEstimator(smooth()))
    settled_s = load.estimator.iteration_s(prefill=(), decode_batch=4, decode_context=512)
    load.ran(settled=False, predicted_s=settled_s, actual_s=settled_s / 2)
    assert load.estimator.iteration_s(prefill=(), decode_batch=4, decode_context=512) == settled_s
