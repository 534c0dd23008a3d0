"""How long is a bar? Shares and amounts as text of an exact width, told apart by shape as well as by colour."""

from collections.abc import Sequence

from rich.text import Text

from llmhostd_tui import look

FULL, HALF, REST = "━", "╾", "─"
LEVELS = "▁▂▃▄▅▆▇█"


def bar(share: float, width: int, colour: str) -> Text:
    """Draw a share 0-1, to half a cell; anything above nothing shows."""
    halves = round(min(max(share, 0.0), 1.0) * width * 2)
    if share > 0 and width > 0:
        halves = max(halves, 1)
    filled = FULL * (halves // 2) + HALF * (halves % 2)
    return Text.assemble((filled, colour), (REST * (width - len(filled)), look.FAINT))


def split_bar(parts: Sequence[tuple[float, str, str]], whole: float, width: int) -> Text:
    """Draw (amount, colour, glyph) side by side on a bar that stands for `whole`; each amount above nothing shows."""
    cells = [
        max(1, round(min(amount, whole) / whole * width)) if min(amount, whole) > 0 else 0 for amount, _, _ in parts
    ]
    while sum(cells) > width and max(cells) > 1:
        cells[cells.index(max(cells))] -= 1
    text = Text()
    for (_, colour, glyph), count in zip(parts, cells, strict=True):
        text.append(glyph * count, colour)
    text.append(REST * (width - len(text)), look.FAINT)
    text.truncate(width)
    return text


def sparkline(values: Sequence[float], width: int, colour: str) -> Text:
    """Draw the last `width` values, one per cell, against the largest of them; newest on the right."""
    shown = list(values)[-width:] if width > 0 else []
    top = max(shown, default=0.0)
    text = Text(" " * (width - len(shown)))
    for value in shown:
        level = round(value / top * (len(LEVELS) - 1)) if top > 0 else 0
        text.append(LEVELS[level], colour if value > 0 else look.FAINT)
    return text
