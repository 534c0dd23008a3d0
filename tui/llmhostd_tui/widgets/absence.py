"""What can be done when no daemon answers?"""

from rich.text import Text
from textual.widgets import Static

from llmhostd_tui import look
from llmhostd_tui.picture import Picture

REMEDIES = (
    ("start one", "llmhostd serve"),
    ("with demo models", "make run"),
    ("elsewhere", "llmhostd --url URL top"),
)
LABEL_WIDTH = 18


class Absence(Static):
    """Stands where the tables will be, until the first answer."""

    DEFAULT_CSS = """
    Absence { width: 1fr; height: 1fr; content-align: center middle; text-align: left; }
    """

    def show(self, picture: Picture) -> None:
        """Say who does not answer, and how to start one."""
        if picture.lost is None:
            self.update(Text(f"Asking {picture.address} ...", look.DIM))
            return
        tries = "once" if picture.attempts == 1 else f"{picture.attempts} times"
        lines = [
            Text("No daemon", f"bold {look.WARN}"),
            Text(picture.lost.because, look.TEXT),
            Text(),
            *(
                Text.assemble((what.ljust(LABEL_WIDTH), look.DIM), (command, f"bold {look.ACCENT}"))
                for what, command in REMEDIES
            ),
            Text(),
            Text(f"Tried {tries}; trying again every second. q quits.", look.DIM),
        ]
        self.update(Text("\n").join(lines))
