"""How is anything drawn for a person, and for a pipe?"""

import sys

from rich.console import Console
from rich.table import Table

PIPE_COLUMNS = 200
"""What is not a terminal has no width: nothing may be cut there."""


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
