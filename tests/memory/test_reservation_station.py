"""Does every memory operation run or end with its reason, without ever taking what is not there?"""

from hypothesis import given, settings
from hypothesis import strategies as st

from llmhostd.memory.reservation_station import Operation, OperationKind, ReservationStation


def operation(name, kind=OperationKind.GROW_KV):
    return Operation(instance_id=name, kind=kind, because=f"{name} grows")


def test_whoever_fits_passes_a_larger_one_and_that_one_runs_after_the_release():
    station, grows = ReservationStation(), {"large": 80, "small": 20}
    station.issue(operation("large"))
    station.issue(operation("small"))
    assert station.in_vain(grows.get, free_bytes=30, coming_bytes=70) == []
    assert station.due(grows.get, 30).instance_id == "small"
    assert station.due(grows.get, 10) is None
    assert station.due(grows.get, 80).instance_id == "large"
    assert (len(station), station.ran, station.violations()) == (0, 2, [])


def test_what_would_wait_for_ever_is_cancelled_with_its_reason_last_come_first():
    station, grows = ReservationStation(), {"first": 60 << 20, "second": 60 << 20}
    station.issue(operation("first"))
    station.issue(operation("second", OperationKind.LOAD_WEIGHTS))
    (gone,) = station.in_vain(grows.get, free_bytes=40 << 20, coming_bytes=50 << 20)
    assert gone.operation.instance_id == "second"
    assert gone.because == "second would need 60 MiB to load its weights, and no more than 30 MiB will come free"
    assert "first" in station and "second" not in station


def test_an_operation_that_is_issued_again_keeps_its_turn():
    station, grows = ReservationStation(), {"first": 10, "second": 10}
    station.issue(operation("first"))
    station.issue(operation("second"))
    station.issue(operation("first", OperationKind.WAKE))
    assert [each.instance_id for each in station] == ["first", "second"]
    assert station.due(grows.get, 10).kind is OperationKind.WAKE


def test_what_needs_no_bytes_runs_on_an_overdrawn_node():
    station = ReservationStation()
    station.issue(operation("even"))
    assert station.in_vain({"even": 0}.get, free_bytes=-50, coming_bytes=0) == []
    assert station.due({"even": 0}.get, -50).instance_id == "even"


NAMES = st.sampled_from("abcdefgh")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), NAMES, st.integers(1, 60)),
        st.tuples(st.just("shrink"), NAMES, st.integers(0, 60)),
        st.tuples(st.just("released"), NAMES, st.just(0)),
        st.tuples(st.just("capacity"), st.just(""), st.integers(0, 150)),
    ),
    max_size=40,
)


@settings(max_examples=400, deadline=None)
@given(STEPS)
def test_nothing_overcommits_and_nothing_waits_once_all_releases_are_over(steps):
    """A toy node: targets are promises, sizes are facts; shrinking takes until somebody says `released`."""
    station, capacity, size, target = ReservationStation(), 100, {}, {}

    def growth(name):
        return max(target.get(name, 0) - size.get(name, 0), 0)

    def free():
        return capacity - sum(size.values())

    def examine():
        coming = sum(max(size[name] - target.get(name, 0), 0) for name in size)
        for each in station.in_vain(growth, free(), coming):
            name = each.operation.instance_id
            assert each.because
            target[name] = size.get(name, 0)
        while operation := station.due(growth, free()):
            name, before = operation.instance_id, free()
            size[name] = max(size.get(name, 0), target[name])
            assert free() >= 0 or free() == before, "it took what was not there"

    for what, name, amount in steps:
        if what == "capacity":
            capacity = amount
        elif what == "released":
            size[name] = min(size.get(name, 0), target.get(name, 0))
        else:
            target[name] = amount
            if growth(name):
                station.issue(operation(name))
            else:
                station.cancel(name)
        examine()
        assert station.violations() == []
    for name in size:
        size[name] = min(size[name], target.get(name, 0))
    examine()
    assert not len(station), "all releases are over: each operation ran or was cancelled"
