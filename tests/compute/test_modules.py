"""Two models of latency, what they are fitted from, and which is chosen."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmhostd.compute.dense_sampler import DensePolicy, DenseSampler
from llmhostd.compute.estimator import ProfiledEstimator
from llmhostd.compute.interpolated import Interpolated
from llmhostd.compute.least_squares import fit
from llmhostd.compute.model_choice import CHECKS, check_loads, choose
from llmhostd.compute.modules import Modules
from llmhostd.compute.padding import Padding
from llmhostd.compute.profile_grid import DecodePoint, PrefillPoint, grid_for
from llmhostd.domain.ids import HardwareKey
from llmhostd.domain.profile import DecodeSample, LatencyModel, PrefillSample, Profile
from llmhostd.simulator.box import make_box

SHAPE = make_box(models=1, sizes=("500m",)).models[0].shape


class Machine:
    """Dense modules in steps of a tile, attention linear in its load: as OmniServe's figure 8 has it."""

    def __init__(self, tile=64, tile_s=0.004, pair_s=2e-8, context_s=3e-8, request_s=2e-4):
        self.tile, self.tile_s = tile, tile_s
        self.pair_s, self.context_s, self.request_s = pair_s, context_s, request_s

    def dense_s(self, tokens):
        return 0.01 + -(-tokens // self.tile) * self.tile_s + tokens * 1e-6

    def seconds(self, prefill, batch, context):
        pairs = sum(chunk * past + chunk * (chunk + 1) // 2 for chunk, past in prefill)
        tokens = batch + sum(chunk for chunk, _ in prefill)
        decodes_s = batch * context * self.context_s + batch * self.request_s
        return self.dense_s(tokens) + pairs * self.pair_s + decodes_s


def measured(seconds, most_chunk=512):
    """Measure as a worker does."""
    grid, prefill, decode = grid_for(SHAPE), [], []
    for point in grid.points:
        if isinstance(point, PrefillPoint):
            took_s = seconds(((point.chunk_tokens, point.past_tokens),), 0, 0)
            prefill.append(
                PrefillSample(chunk_tokens=point.chunk_tokens, past_tokens=point.past_tokens, seconds=took_s)
            )
        elif isinstance(point, DecodePoint):
            took_s = seconds((), point.batch, point.context_tokens)
            decode.append(DecodeSample(batch=point.batch, context_tokens=point.context_tokens, seconds=took_s))
    sampler = DenseSampler(most_chunk)
    while (tokens := sampler.wanted()) is not None:
        sampler.learned(tokens, seconds(((tokens, 0),), 0, 0))
    checks = tuple(
        msgspec.structs.replace(one, seconds=seconds(one.prefill, one.batch, one.context_tokens))
        for one in check_loads(SHAPE)
    )
    return choose(Profile(
        shape_key=SHAPE.key, hardware_key=HardwareKey("box"), prefill=tuple(prefill), decode=tuple(decode),
        load_s=1.0, first_run_s=0.1, resident_bytes=1, warm_bytes=1, dense=sampler.samples, checks=checks,
    ))  # fmt: skip


def test_modules_are_told_apart_from_whole_iterations():
    machine = Machine()
    modules = Modules(measured(machine.seconds))
    for load in (((300, 1000),), 8, 700), (((64, 0), (64, 2000)), 3, 90), ((), 20, 1500), (((512, 3000),), 0, 0):
        assert modules.seconds(*load) == pytest.approx(machine.seconds(*load), rel=0.08)


def test_steps_make_modules_the_better_model():
    profile = measured(Machine().seconds)
    assert profile.latency_model is LatencyModel.MODULES
    assert profile.modules_error < profile.interpolation_error
    assert profile.modules_error < 0.05
    asked = {"prefill": ((200, 500),), "decode_batch": 4, "decode_context": 300}
    expected = Modules(profile).seconds(((200, 500),), 4, 300)
    assert ProfiledEstimator(profile).iteration_s(**asked) == pytest.approx(expected)


COUNTS = (1, 2, 4, 6, 8, 12, 16, 24, 32)


class RoundingMachine(Machine):
    """Computes a few tokens more than it is asked for."""

    def dense_s(self, tokens):
        if tokens > COUNTS[-1]:
            return super().dense_s(-(-tokens // COUNTS[-1]) * COUNTS[-1])
        return 0.01 + 0.001 * min(count for count in COUNTS if count >= tokens)


@pytest.mark.parametrize("model", [Interpolated, Modules])
def test_counts_that_an_engine_rounds_up_take_what_it_computes(model):
    machine = RoundingMachine(tile=32, tile_s=0.032)
    profile = msgspec.structs.replace(measured(machine.seconds), token_step=32, token_counts=COUNTS)
    told, untold = model(profile), model(msgspec.structs.replace(profile, token_counts=()))
    off, off_untold = [], []
    for batch in range(1, 33):
        for context in (64, 300, 3000):
            took_s = machine.seconds((), batch, context)
            off.append(abs(told.seconds((), batch, context) / took_s - 1))
            off_untold.append(abs(untold.seconds((), batch, context) / took_s - 1))
    assert max(off) < 0.04
    assert max(off_untold) > 0.08
    assert sum(off) < 0.5 * sum(off_untold)


@given(st.integers(0, 300), st.sets(st.integers(1, 40)), st.integers(1, 64))
def test_rounding_up_never_falls_and_rounds_no_count_twice(tokens, counts, step):
    profile = msgspec.structs.replace(measured(Machine().seconds), token_step=step, token_counts=tuple(counts))
    padded = Padding(profile).padded
    assert tokens <= padded(tokens) <= padded(tokens + 1)
    assert padded(padded(tokens)) == padded(tokens)


def test_what_no_line_describes_is_interpolated():
    """Caches overflow: attention is not linear in its load."""
    machine = Machine(tile=8, tile_s=0.0003)

    def seconds(prefill, batch, context):
        spilled = batch * context > 20_000
        return machine.seconds(prefill, batch, context) + spilled * 0.03 + sum(p > 1500 for _, p in prefill) * 0.05

    profile = measured(seconds)
    assert profile.latency_model is LatencyModel.INTERPOLATION
    assert profile.interpolation_error < profile.modules_error


def test_without_checks_nothing_is_chosen():
    profile = msgspec.structs.replace(measured(Machine().seconds), checks=(), interpolation_error=None)
    assert choose(profile) is profile


def test_both_models_say_nothing_takes_no_time_and_more_takes_no_less():
    profile = measured(Machine().seconds)
    for model in Modules(profile), Interpolated(profile):
        assert model.seconds((), 0, 0) == 0.0
        previous = 0.0
        for chunk in range(1, 900, 7):
            now = model.seconds(((chunk, 700),), 5, 400)
            assert now >= previous
            previous = now


def test_checks_are_neither_grid_points_nor_alike():
    loads = check_loads(SHAPE)
    assert len(loads) == CHECKS == len(set(map(repr, loads)))
    mixed = [one for one in loads if one.prefill and one.batch]
    assert len(mixed) == CHECKS // 2
    grid = {(p.chunk_tokens, p.past_tokens) for p in grid_for(SHAPE).points if isinstance(p, PrefillPoint)}
    assert sum(one.prefill[0] in grid for one in loads if one.prefill) <= 1


@given(st.integers(1, 200_000))
def test_checks_fit_into_the_context(longest):
    architecture = msgspec.structs.replace(SHAPE.architecture, max_context_tokens=longest)
    for one in check_loads(msgspec.structs.replace(SHAPE, architecture=architecture)):
        assert all(chunk >= 1 and past >= 0 and chunk + past <= longest for chunk, past in one.prefill)
        assert one.context_tokens <= longest


def test_the_sampler_finds_the_steps():
    machine = Machine(tile=128, tile_s=0.02)
    sampler = DenseSampler(512, DensePolicy(most_samples=40))
    while (tokens := sampler.wanted()) is not None:
        sampler.learned(tokens, machine.dense_s(tokens))
    seen = [one.tokens for one in sampler.samples]
    for edge in (128, 256, 384):
        assert edge in seen
        assert edge + 1 in seen


def test_a_flat_machine_is_known_from_its_ends():
    sampler = DenseSampler(512)
    while (tokens := sampler.wanted()) is not None:
        sampler.learned(tokens, 0.05)
    assert [one.tokens for one in sampler.samples] == [1, 16, 512]
    assert sampler.left == 0


@given(st.integers(1, 700), st.integers(3, 30), st.lists(st.floats(1e-4, 2.0), min_size=40, max_size=40))
def test_the_sampler_ends_whatever_it_is_told(most, samples, seconds):
    sampler = DenseSampler(most, DensePolicy(most_samples=samples))
    for turn in range(samples + 1):
        wanted = sampler.wanted()
        if wanted is None:
            return
        assert 1 <= wanted <= most
        assert wanted not in [one.tokens for one in sampler.samples]
        sampler.learned(wanted, seconds[turn % len(seconds)])
    raise AssertionError("it asks for more than it may")


tenths = st.integers(0, 90).map(lambda n: n / 10)
"""Counts of tokens are far from the smallest floats, whose inverse is infinite."""
rows = st.tuples(tenths, tenths, st.floats(-9, 9), st.floats(0.1, 3))


@given(st.lists(rows, min_size=3, max_size=9), st.sampled_from([(None, None), (0.0, None), (0.0, 0.0)]))
def test_no_line_nearby_fits_better(drawn, least):
    """Compare with every neighbour that the bounds allow."""

    def off(x):
        return sum((w * (a * x[0] + b * x[1] - v)) ** 2 for a, b, v, w in drawn)

    found = fit([one[:2] for one in drawn], [one[2] for one in drawn], [one[3] for one in drawn], least)
    assert all(bound is None or x >= bound for x, bound in zip(found, least, strict=True))
    if least != (None, None):
        return
    for step in (1e-3, 0.1):
        for move in ((step, 0), (-step, 0), (0, step), (0, -step), (step, step), (step, -step)):
            assert off(found) <= off([x + d for x, d in zip(found, move, strict=True)]) + 1e-6
