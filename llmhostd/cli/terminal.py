"""How is anything drawn for a person, and for a pipe?"""

import sys
from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

PIPE_COLUMNS = 1000
"""What is not a terminal has no width: nothing may be cut there."""
BAR_CELLS = 24
GAP = 2
NO_MODELS = "no models yet: llmhostd models add PATH, or llmhostd demo-models"


def console() -> Console:
    """Standard output."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_COLUMNS)


def aside() -> Console:
    """Standard error: what is said while a person waits."""
    return Console(stderr=True, highlight=False)


class PlainTable:
    """Columns without lines, so that it can be cut and grepped. A narrow terminal leaves some out, and says which."""

    def __init__(self, *titles: str, spare: Sequence[str] = (), right: Sequence[str] = ()) -> None:
        """Titles may have markup, and a legend after two spaces; where there is no room `spare` goes, first to last."""
        self._titles = titles
        self._spare = spare
        self._right = right
        self._rows: list[tuple[Text, ...]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add_row(self, *cells: str | Text) -> None:
        """One cell for each title."""
        self._rows.append(tuple(cell if isinstance(cell, Text) else Text(cell) for cell in cells))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        gone = self._left_out(options.max_width)
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
        kept = [i for i, title in enumerate(self._titles) if title not in gone]
        for i in kept:
            title = self._titles[i]
            table.add_column(title, no_wrap=True, justify="right" if title in self._right else "left")
        for row in self._rows:
            table.add_row(*(row[i] for i in kept))
        yield table
        if named := ", ".join(title.partition("  ")[0] for title in gone if title):
            yield Text(f"no room here for {named}", "dim")

    def _left_out(self, width: int) -> tuple[str, ...]:
        """The first of the spare columns, as many as it takes."""
        heads = (Text.from_markup(title) for title in self._titles)
        columns = zip(heads, *self._rows, strict=True)
        cells = [max(cell.cell_len for cell in column) for column in columns]
        needed = sum(cells) + GAP * (len(cells) - 1)
        for gone, title in enumerate(self._spare):
            if needed <= width:
                return tuple(self._spare[:gone])
            needed -= cells[self._titles.index(title)] + GAP
        return tuple(self._spare)


def bar(parts: Sequence[tuple[float, str]], whole: float) -> Text:
    """Parts of a whole as coloured cells; what is left is dim."""
    drawn = Text()
    filled, cells = 0.0, 0
    for part, style in parts:
        filled += part
        until = min(BAR_CELLS, round(BAR_CELLS * filled / whole)) if whole else 0
        drawn.append("█" * (until - cells), style)
        cells = max(cells, until)
    return drawn.append("░" * (BAR_CELLS - cells), "bright_black")
