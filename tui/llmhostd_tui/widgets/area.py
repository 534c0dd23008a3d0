"""How do amounts that lie on one another become lines of text, column by column?"""

from collections.abc import Sequence

from rich.text import Text

EIGHTHS = " ▁▂▃▄▅▆▇█"
FINE = len(EIGHTHS) - 1


def area(columns: Sequence[Sequence[float] | None], height: int, colours: Sequence[str], ground: str) -> list[Text]:
    """Draw columns of one cell each, `height` lines high, top line first.

    A column is where its layers end, from the lowest up, as shares 0-1 of the height: one share per colour, none
    smaller than the one before it. Where two layers share a cell, the lower one is drawn exactly. None: nothing known.
    """
    lines = [Text() for _ in range(height)]
    for column in columns:
        ends = _ends(column or (), height)
        for line, text in enumerate(lines):
            glyph, style = _cell(ends, colours, ground, (height - 1 - line) * FINE)
            text.append(glyph, style)
    return lines


def _ends(shares: Sequence[float], height: int) -> list[int]:
    """In eighths of a cell; anything above nothing shows."""
    ends: list[int] = []
    for share in shares:
        end = round(min(max(share, 0.0), 1.0) * height * FINE)
        ends.append(max(end, 1 if share > 0 else 0, ends[-1] if ends else 0))
    return ends


def _cell(ends: Sequence[int], colours: Sequence[str], ground: str, low: int) -> tuple[str, str]:
    """Draw the eighths from `low` on."""
    inside = [(end, colour) for end, colour in zip(ends, colours, strict=False) if end > low]
    if not inside:
        return " ", f"on {ground}"
    end, colour = inside[0]
    if end >= low + FINE:
        return EIGHTHS[-1], colour
    above = next((other for further, other in inside[1:] if further > end), ground)
    return EIGHTHS[end - low], f"{colour} on {above}"
