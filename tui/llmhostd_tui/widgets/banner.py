"""Is anything wrong that a person should know now?"""

from rich.text import Text
from textual.widgets import Static

from llmhostd_tui import look
from llmhostd_tui.picture import Severity, Trouble

MARKS = {
    Severity.DOWN: ("✗", f"bold {look.GROUND} on {look.BAD}", look.BAD),
    Severity.DEGRADED: ("▲", f"bold {look.GROUND} on {look.WARN}", look.WARN),
    Severity.SLOW: ("△", look.WARN, look.DIM),
}
ROWS_PER_LINE = 12
"""The banner takes at most one line for so many rows of the terminal."""


class Banner(Static):
    """One line per trouble, worst first; absent when there is none."""

    DEFAULT_CSS = (
        "Banner { height: auto; display: none; background: $surface; text-wrap: nowrap; text-overflow: ellipsis; }"
    )

    def show(self, troubles: list[Trouble]) -> None:
        """Draw the worst; say how many more there are."""
        room = max(1, self.app.size.height // ROWS_PER_LINE)
        lines = [_line(trouble) for trouble in troubles[:room]]
        if len(troubles) > room:
            lines[-1] = Text(f"+{len(troubles) - room} ", look.WARN) + lines[-1]
        self.display = bool(lines)
        self.update(Text("\n").join(lines))


def _line(trouble: Trouble) -> Text:
    mark, mark_style, style = MARKS[trouble.severity]
    return Text.assemble((f" {mark} ", mark_style), " ", (trouble.text, style), no_wrap=True, overflow="ellipsis")
