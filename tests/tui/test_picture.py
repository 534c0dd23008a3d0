"""Are the facts that are drawn the right ones?"""

import json

import msgspec
from llmhostd_tui.client import Snapshot
from llmhostd_tui.picture import HISTORY, Picture
from recorded_daemon import KINDS, RECORDED

from llmhostd.domain.ids import NodeId


def recorded(taken_s: float, **host: object) -> Snapshot:
    """The recording, taken at some time, with other counts."""
    answers = {kind: json.loads((RECORDED / f"{kind}.json").read_text()) for kind in KINDS}
    answers["host"] |= host
    return msgspec.convert({"taken_s": taken_s, **answers}, Snapshot)


def test_arrivals_per_second_are_counted_over_the_last_seconds() -> None:
    picture = Picture("here")
    assert picture.requests_per_s() is None
    for second in range(30):
        picture.hear_snapshot(recorded(float(second), requests=5 * second + (100 if second > 24 else 0)))
    assert picture.requests_per_s() == (50 + 100) / 10


def test_a_restarted_daemon_has_no_negative_rate() -> None:
    picture = Picture("here")
    picture.hear_snapshot(recorded(0.0, requests=1000, uptime_s=50.0))
    picture.hear_snapshot(recorded(1.0, requests=2, uptime_s=0.5))
    assert picture.requests_per_s() is None
    picture.hear_snapshot(recorded(2.0, requests=5, uptime_s=1.5))
    assert picture.requests_per_s() == 3


def test_a_frozen_picture_stays_as_it_was() -> None:
    picture = Picture("here")
    picture.hear_snapshot(recorded(0.0))
    frozen = picture.frozen()
    for second in range(1, 300):
        picture.hear_snapshot(recorded(float(second), refused=99))
    assert frozen.snapshot is not None
    assert frozen.snapshot.host.refused == 3
    assert len(frozen.tokens_per_s[NodeId("cpu0")]) == 1
    assert len(picture.tokens_per_s[NodeId("cpu0")]) == HISTORY


def test_share_of_kept_promises_is_unknown_before_the_first() -> None:
    picture = Picture("here")
    picture.hear_snapshot(recorded(0.0, slo_met=0, slo_missed=0))
    assert picture.slo_share() is None


def test_what_is_slow_on_several_nodes_is_one_line() -> None:
    picture, snapshot = Picture("here"), recorded(0.0)
    nodes = tuple(
        msgspec.structs.replace(snapshot.nodes[0], id=NodeId(name), caveats=("no AMX", *more))
        for name, more in (("cpu0", ()), ("cpu1", ("on battery",)))
    )
    picture.hear_snapshot(msgspec.structs.replace(snapshot, nodes=nodes))
    assert [one.text for one in picture.troubles()][-2:] == ["cpu0, cpu1: no AMX", "cpu1: on battery"]


def test_what_the_disk_does_not_take_is_a_trouble_until_it_does() -> None:
    picture, said = Picture("here"), "state.db: database or disk is full; not stored yet: usage"
    for not_stored in ([said], []):
        picture.hear_snapshot(recorded(0.0, not_stored=not_stored))
        assert ([said] == not_stored) == (said in [one.text for one in picture.troubles()])
