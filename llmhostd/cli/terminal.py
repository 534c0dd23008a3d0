"""How is anything drawn for a person, and for a pipe?"""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_COLUMNS = 1000
"""What is not a terminal has no width: nothing may be cut there."""
BAR_CELLS = 24
NO_MODELS = "no models yet: llmhostd models add PATH, or llmhostd demo-models"


def console() -> Console:
    """Standard output."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_COLUMNS)


def aside() -> Console:
    """Standard error: what is said while a person waits."""
    return Console(stderr=True, highlight=False)


def plain_table(*columns: str) -> Table:
    """Columns without lines, so that it can be cut and grepped."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, no_wrap=True)
    return table


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
