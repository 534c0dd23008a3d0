"""How far is a long transfer? Whoever moves bytes says so; whoever faces a person draws it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as RichProgress

Progress = Callable[[str, int, int], None]
"""(what, bytes so far, bytes in all). Bytes so far never go back, except when a broken piece is fetched again."""


def no_progress(_what: str, _done: int, _total: int) -> None:
    """Draw nothing."""


@contextmanager
def drawn_progress(console: Console | None = None) -> Iterator[Progress]:
    """Draw one bar per name on a terminal (stderr by default); nothing where there is no terminal."""
    shown = console or Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with RichProgress(*columns, console=shown, disable=not shown.is_terminal) as bars:

        def draw(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield draw
