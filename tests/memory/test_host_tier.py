"""Is what is kept in host memory worth most, and never worth less than the least-recently-used rule?"""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from llmhostd.domain.ids import ModelName
from llmhostd.memory.host_tier import AskRate, Candidate, chosen, first_to_go

SIZES = st.integers(1, 100)
SAVINGS = st.floats(0.0, 10.0)


@st.composite
def candidates(draw: st.DrawFn, sizes: st.SearchStrategy[int] = SIZES) -> list[Candidate]:
    return [
        Candidate(ModelName(f"m{place}"), draw(sizes), draw(SAVINGS), draw(st.floats(0, 1000)), draw(st.booleans()))
        for place in range(draw(st.integers(0, 8)))
    ]


def saving(of: list[Candidate], names: list[ModelName]) -> float:
    return sum(one.saves_per_s for one in of if one.name in names)


def least_recently_used(of: list[Candidate], room: int) -> list[ModelName]:
    """Keep the last asked for that still fits, one at a time."""
    names: list[ModelName] = []
    left = sorted(of, key=lambda one: one.name)
    while left:
        last = max(left, key=lambda one: one.last_asked_s)
        left.remove(last)
        if last.bytes <= room:
            room -= last.bytes
            names.append(last.name)
    return names


def optimum(of: list[Candidate], room: int) -> float:
    """Every subset that fits."""
    subsets = (each for size in range(len(of) + 1) for each in combinations(of, size))
    return max(sum(one.saves_per_s for one in each) for each in subsets if sum(one.bytes for one in each) <= room)


@given(candidates(), st.integers(0, 300), st.floats(1.0, 3.0))
def test_it_fits_and_saves_at_least_what_lru_would(of: list[Candidate], room: int, displaces: float) -> None:
    names = chosen(of, room, displaces)
    assert sum(one.bytes for one in of if one.name in names) <= room
    assert len(names) == len({*names})
    assert saving(of, least_recently_used(of, room)) <= displaces * saving(of, names) + 1e-9
    assert saving(of, names) <= optimum(of, room) + 1e-9


@given(candidates(st.just(10)), st.integers(0, 100))
def test_of_alike_models_it_is_the_optimum(of: list[Candidate], room: int) -> None:
    assert abs(saving(of, chosen(of, room)) - optimum(of, room)) < 1e-9


@given(candidates(), st.integers(0, 300))
def test_where_nothing_is_known_to_save_the_last_asked_for_stay(of: list[Candidate], room: int) -> None:
    unknown = [Candidate(one.name, one.bytes, 0.0, one.last_asked_s, one.kept) for one in of]
    assert sorted(chosen(unknown, room)) == sorted(least_recently_used(unknown, room))


@given(candidates(), st.integers(0, 300))
def test_who_must_go_makes_the_others_fit_and_nobody_goes_who_fits(of: list[Candidate], room: int) -> None:
    gone = first_to_go(of, room)
    staying = [one for one in of if one.name not in gone]
    assert sum(one.bytes for one in staying) <= room
    if sum(one.bytes for one in of) <= room:
        assert not gone


def test_a_newcomer_must_save_considerably_more_than_who_is_there() -> None:
    there = Candidate(ModelName("there"), 10, 1.0, 0.0, kept=True)
    newcomer = Candidate(ModelName("new"), 10, 1.2, 1.0, kept=False)
    assert chosen([there, newcomer], 10, 1.25) == ["there"]
    assert chosen([there, newcomer], 10, 1.1) == ["new"]


@given(st.lists(st.floats(0, 5000), min_size=1, max_size=50))
def test_a_rate_is_a_sum_of_fading_requests(times_s: list[float]) -> None:
    rate = AskRate(600.0)
    for at_s in sorted(times_s):
        rate.asked(at_s)
    now = max(times_s) + 100.0
    twin = sum(0.5 ** ((now - at_s) / 600.0) for at_s in times_s) * 0.6931471805599453 / 600.0
    assert abs(rate.per_s(now) - twin) < 1e-9
