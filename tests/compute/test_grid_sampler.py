"""Against timing every point: is as much known from few samples, whatever the machine is like, and does it end?"""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmhostd.compute.grid_sampler import GridSampler, GridSamplingPolicy, Near
from llmhostd.compute.interpolation import MonotoneGrid

CHUNKS = (8, 16, 32, 64, 128, 256, 512)
PASTS = (0, 256, 512, 1024, 2048, 4096)
NEAR = Near((8, 32, 128), 256)


def sampled(seconds, xs=CHUNKS, ys=PASTS, near=NEAR, policy=None):
    """Let a sampler ask for whatever it wants; it never asks twice."""
    sampler = GridSampler(xs, ys, near, policy or GridSamplingPolicy())
    asked = []
    while (point := sampler.wanted()) is not None:
        assert point not in asked
        assert sampler.left >= 1
        assert point[0] in xs
        assert point[1] in ys
        asked.append(point)
        sampler.learned(point, seconds(*point))
    assert sampler.timed == len(asked)
    return sampler, asked


def machine(*, step_s, knee, token_s, pair_s, looking_back_s):
    """Memory-bound below the knee, then so much per token; looking back costs once, and per pair."""
    return lambda x, y: step_s + max(x - knee, 0) * token_s + x * y * pair_s + (looking_back_s if y else 0.0)


machines = st.builds(
    machine,
    step_s=st.floats(0.005, 0.2), knee=st.sampled_from([0, 12, 40, 100]), token_s=st.floats(1e-5, 1e-3),
    pair_s=st.floats(0.0, 1e-6), looking_back_s=st.floats(0.0, 0.002),
)  # fmt: skip


@given(machines, st.integers(8, 512), st.integers(0, 4096))
def test_few_samples_say_what_all_would(seconds, x, y):
    sampler, asked = sampled(seconds, policy=GridSamplingPolicy(longest_s=100.0))
    every = MonotoneGrid({point: seconds(*point) for point in product(CHUNKS, PASTS)})
    few = MonotoneGrid(sampler.grid())
    assert len(asked) <= 24
    assert few.at(x, y) == pytest.approx(every.at(x, y), rel=0.12)


def test_a_machine_that_is_as_the_papers_say_needs_a_third_of_the_samples():
    seconds = machine(step_s=0.03, knee=40, token_s=3e-4, pair_s=5e-8, looking_back_s=0.001)
    sampler, asked = sampled(seconds)
    every = [seconds(*point) for point in product(CHUNKS, PASTS)]
    assert len(asked) <= len(every) / 2
    assert sum(seconds(*point) for point in asked) <= sum(every) / 2
    assert max(abs(sampler.grid()[x, y] / seconds(x, y) - 1) for x, y in sampler.grid()) < 0.02


def test_where_nothing_is_straight_it_looks_closer():
    def bent(x, y):
        return 0.02 + x * 1e-4 + x * y**1.6 * 1e-9

    straight_asked = sampled(lambda x, y: 0.02 + x * 1e-4 + x * y * 1e-7)[1]
    sampler, asked = sampled(bent)
    assert len(asked) > len(straight_asked)
    assert len({y for _, y in sampler.grid()}) > 3


@given(st.lists(st.floats(1e-4, 3.0), min_size=60, max_size=60), st.integers(1, 7), st.integers(1, 6))
def test_it_ends_with_full_grids_whatever_it_is_told(seconds, wide, high):
    times = iter(seconds)
    sampler = GridSampler(CHUNKS[:wide], PASTS[:high], NEAR, GridSamplingPolicy())
    stages = []
    for ask in (sampler.near, sampler.wanted):
        while (point := ask()) is not None:
            sampler.learned(point, next(times))
        stages.append(sampler.grid())
    assert sampler.left == 0
    assert sampler.timed <= wide * high
    for grid in stages:
        MonotoneGrid(grid)  # raises where a point is missing
        assert all(took_s > 0 for took_s in grid.values())


def test_no_more_is_timed_than_any_promise_allows():
    def slow(x, y):
        return x * 0.05 + x * y * 1e-5

    sampler, asked = sampled(slow, policy=GridSamplingPolicy(longest_s=4.0))
    assert max(x for x, _ in asked) == 128  # with which it begins
    assert all(slow(x, y) <= 8.0 for x, y in asked)
    assert MonotoneGrid(sampler.grid()).at(512, 0) == pytest.approx(slow(512, 0), rel=0.01)


def test_what_it_begins_with_is_small():
    sampler = GridSampler(CHUNKS, PASTS, NEAR, GridSamplingPolicy())
    asked = []
    while (point := sampler.near()) is not None:
        asked.append(point)
        sampler.learned(point, 0.01 + point[0] * 1e-4)
    assert asked == [(8, 0), (32, 0), (128, 0), (32, 256)]
