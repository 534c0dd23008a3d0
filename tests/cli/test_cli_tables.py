"""Whatever the width of a terminal, a table shows whole figures, and says what it has no room for."""

import io
import os
import pty
import subprocess
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import given
from rich.console import Console
from typed_commands import COMMAND

from llmhostd.cli.terminal import GAP, PlainTable

TITLES = ("ALPHA", "BETA", "GAMMA", "DELTA", "EPSILON")
words = st.text("abcxyz0123456789", min_size=1, max_size=20)


def drawn(table: PlainTable, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


@given(
    rows=st.lists(st.tuples(*[words] * len(TITLES)), min_size=1, max_size=4),
    spare=st.permutations(TITLES[1:]).flatmap(lambda some: st.integers(0, 4).map(lambda n: tuple(some[:n]))),
    width=st.integers(20, 140),
)
def test_a_narrow_terminal_loses_whole_columns_and_no_more_than_it_must(
    rows: list[tuple[str, ...]], spare: tuple[str, ...], width: int
) -> None:
    table = PlainTable(*TITLES, spare=spare)
    for row in rows:
        table.add_row(*row)
    heading, *lines = drawn(table, width)
    columns = {title: max(map(len, (title, *cells))) for title, *cells in zip(TITLES, *rows, strict=True)}

    def needed(titles: list[str]) -> int:
        return sum(columns[title] for title in titles) + GAP * (len(titles) - 1)

    kept = [title for title in TITLES if title in heading.split()]
    gone = [title for title in TITLES if title not in kept]
    if needed([title for title in TITLES if title not in spare]) <= width:
        assert needed(kept) <= width
        assert sorted(gone) == sorted(spare[: len(gone)])
        assert not gone or needed([*kept, spare[len(gone) - 1]]) > width
        shown = [tuple(cell for cell, title in zip(row, TITLES, strict=True) if title in kept) for row in rows]
        assert [tuple(line.split()) for line in lines[: len(rows)]] == shown
        rest = " ".join(" ".join(lines[len(rows) :]).split())
        assert rest == (f"no room here for {', '.join(spare[: len(gone)])}" if gone else "")


def test_a_pipe_gets_every_column(tmp_path: Path) -> None:
    command = [*COMMAND, "--state-dir", str(tmp_path), "models", "list"]
    subprocess.run([*COMMAND, "--state-dir", str(tmp_path), "demo-models", "demo-noise-qwen2-5m"], check=True)
    piped = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0].split()
    master, slave = pty.openpty()
    subprocess.run(command, stdout=slave, stdin=slave, check=True, env=os.environ | {"COLUMNS": "50"})
    os.close(slave)
    narrow = os.read(master, 100_000).decode()
    os.close(master)
    assert piped == ["MODEL", "FAMILY", "PARAMS", "WEIGHTS", "SIZE", "CONTEXT", "STATE"]
    assert "no room here for PARAMS" in narrow
    assert "…" not in narrow
