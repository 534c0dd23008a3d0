"""Is every bar as wide as it must be, every column where it fits, every amount spelled in few characters?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmhostd_tui.widgets.bars import bar, sparkline, split_bar
from llmhostd_tui.widgets.columns import GAP, Column, place
from llmhostd_tui.words import spell_bytes, spell_kind, spell_rate, spell_seconds, spell_share
from rich.text import Text

amounts = st.floats(0, 1e12)
widths = st.integers(0, 80)


@given(st.floats(-3, 3), widths)
def test_a_bar_has_its_width_and_grows_with_its_share(share: float, width: int) -> None:
    assert len(bar(share, width, "red").plain) == width
    assert bar(share, width, "red").plain.count("━") <= bar(share + 0.5, width, "red").plain.count("━")


def test_a_bar_of_nothing_is_empty_and_of_all_is_full() -> None:
    assert bar(0.0, 8, "red").plain == "─" * 8
    assert bar(-1.0, 8, "red").plain == "─" * 8
    assert bar(1.0, 8, "red").plain == "━" * 8
    assert bar(0.001, 8, "red").plain == "╾" + "─" * 7


@given(st.lists(amounts, max_size=5), amounts, widths)
def test_a_split_bar_has_its_width(parts: list[float], whole: float, width: int) -> None:
    assert len(split_bar([(part, "red", "x") for part in parts], whole, width).plain) == width


def test_a_split_bar_shows_every_part() -> None:
    text = split_bar([(1, "red", "a"), (9_000, "blue", "b"), (2, "green", "c")], 10_000, 12).plain
    assert [text.count(glyph) > 0 for glyph in "abc"] == [True] * 3


@given(st.lists(amounts, max_size=100), widths)
def test_a_sparkline_has_its_width(values: list[float], width: int) -> None:
    assert len(sparkline(values, width, "red").plain) == width


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 60), st.integers(0, 5)), min_size=1, max_size=9),
    st.integers(1, 250),
)
def test_columns_never_exceed_the_width_and_drop_the_least_important(
    specs: list[tuple[int, int, int]], width: int
) -> None:
    columns = [
        Column[int](str(at), lambda _, __: Text(), least, most, rank) for at, (least, most, rank) in enumerate(specs)
    ]
    placed = place(columns, width)
    assert placed
    assert sum(one.width for one in placed) + GAP * (len(placed) - 1) <= width
    kept = {one.column.title for one in placed}
    dropped = [column for column in columns if column.title not in kept]
    assert all(gone.rank >= max(one.column.rank for one in placed) for gone in dropped)


@pytest.mark.parametrize(
    ("amount", "spelled"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1023, "1 KiB"),
        (5 << 20, "5.0 MiB"),
        (690 << 20, "690 MiB"),
        (12 << 30, "12.0 GiB"),
        (1 << 41, "2.0 TiB"),
    ],
)
def test_bytes(amount: int, spelled: str) -> None:
    assert spell_bytes(amount) == spelled


@pytest.mark.parametrize(
    ("seconds", "spelled"),
    [
        (0, "0 ms"),
        (0.0414, "41 ms"),
        (-0.41, "-410 ms"),
        (0.9996, "1.00 s"),
        (1.934, "1.93 s"),
        (12.44, "12.4 s"),
        (185, "3 m 05 s"),
        (-140, "-2 m 20 s"),
        (7_860, "2 h 11 m"),
        (360_000, "4 d 4 h"),
    ],
)
def test_seconds(seconds: float, spelled: str) -> None:
    assert spell_seconds(seconds) == spelled


def test_rates_and_shares() -> None:
    assert [spell_rate(rate) for rate in (0, 0.25, 9.96, 411.7)] == ["0", "0.2", "10", "412"]
    assert [spell_share(share) for share in (0, 0.784, 0.9946, 0.99999, 1)] == [
        "0 %",
        "78 %",
        "99.5 %",
        "99.9 %",
        "100 %",
    ]


@pytest.mark.parametrize(
    ("kind", "spelled"),
    [
        ("SubmitRequest", "submit"),
        ("IterationReported", "iteration"),
        ("NodeDown", "node down"),
        ("RequestReturned", "returned"),
        ("QuarantineModel", "quarantine"),
    ],
)
def test_kinds(kind: str, spelled: str) -> None:
    assert spell_kind(kind) == spelled
