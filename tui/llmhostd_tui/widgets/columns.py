"""Which columns fit, and how wide is each?"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.text import Text

T = TypeVar("T")
GAP = 2


@dataclass(frozen=True)
class Column(Generic[T]):
    """One column of a table of T."""

    title: str
    draw: Callable[[T, int], Text]
    """Draws a thing in so many cells; what is longer is cut with an ellipsis."""
    width: int
    """Cells at least."""
    most: int = 0
    """Cells at most; 0: as `width`."""
    rank: int = 0
    """Where there is no room, columns of the highest rank go first."""
    right: bool = False
    legend: tuple[tuple[str, str], ...] = ()
    """(text, colour) after the title: what the colours below mean."""


@dataclass(frozen=True)
class Placed(Generic[T]):
    """A column and the cells that it got."""

    column: Column[T]
    width: int

    def fit(self, text: Text) -> Text:
        """Cut or pad to the width."""
        text = text.copy()
        text.no_wrap = True
        text.truncate(self.width, overflow="ellipsis")
        missing = self.width - text.cell_len
        padding = Text(" " * missing)
        return Text.assemble(padding, text) if self.column.right else Text.assemble(text, padding)


def place(columns: Sequence[Column[T]], width: int) -> list[Placed[T]]:
    """Choose the columns for `width` cells: drop the least important, then share out what is left evenly."""
    kept = list(columns)
    while len(kept) > 1 and _least(kept) > width:
        kept.remove(max(reversed(kept), key=lambda column: column.rank))
    widths = [min(column.width, width) for column in kept]
    spare = width - _least(kept)
    while spare > 0:
        growing = [i for i, column in enumerate(kept) if widths[i] < column.most]
        if not growing:
            break
        narrowest = min(growing, key=lambda i: widths[i] / kept[i].width)
        widths[narrowest] += 1
        spare -= 1
    return [Placed(column, cells) for column, cells in zip(kept, widths, strict=True)]


def _least(columns: Sequence[Column[T]]) -> int:
    return sum(column.width for column in columns) + GAP * (len(columns) - 1)
