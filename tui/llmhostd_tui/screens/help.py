"""What does everything on the screen mean?"""

from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from llmhostd_tui import look
from llmhostd_tui.widgets.instances import STATES
from llmhostd_tui.widgets.nodes import KV_FREE_GLYPH

KEYS = (
    ("tab, shift+tab", "go to the next, the previous table"),
    ("up, down", "choose a row; on the first row the table follows what is new"),
    ("enter", "all that is known of the chosen row, and what was decided about it"),
    ("/", "show only decisions with these words; -word hides; esc clears"),
    ("i", "show or hide iterations among the decisions; ten a second and node are told, the last is at its node"),
    ("m", "memory of every node over the last minutes, and of every instance; m or esc goes back"),
    ("p", "freeze the screen; what happens meanwhile is kept"),
    ("q", "quit"),
)
MEANINGS = (
    ("headroom", "how long a request's next token can wait before its SLO is missed; half a bar is one TTFT SLO"),
    ("held", "what a node's instances may hold now; promised: once every decision that was taken is carried out"),
    ("start", "how long an instance's start took, and how long it was foretold to take (~)"),
    ("late", "the next token is due already"),
    ("nobody waits", "best effort (service_tier flex): runs in what is left, has no SLO"),
    ("moves", "how often a request went elsewhere with its prompt and the tokens it had streamed"),
    ("SLO met", "share of finished requests, since the daemon started, with first token and mean token in time"),
    ("refused", "told at once that the SLO could not be met"),
)
STATE_WORDS = {
    "cold": "on disk only",
    "loading": "being built and compiled",
    "warm": "compiled, never run: some tens of MB, first token soon",
    "resident": "has run: weights packed, KV mapped",
    "unloading": "giving its memory back",
    "quarantined": "took its worker down several times in a row",
}
LABEL_WIDTH = 16


class Help(ModalScreen[None]):
    """Keys and words."""

    DEFAULT_CSS = """
    Help { align: center middle; background: $background 60%; }
    Help > VerticalScroll {
        width: 92; max-width: 96%; height: auto; max-height: 94%; padding: 1 2;
        background: $surface; border: round $faint; border-title-color: $accent;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "app.pop_screen", "back")]

    def compose(self) -> ComposeResult:
        """One text that scrolls."""
        with VerticalScroll() as box:
            box.border_title = "help"
            yield Static(self._legend())
            for label, meaning in KEYS:
                yield entry(label, meaning)
            yield Static()
            for label, meaning in MEANINGS:
                yield entry(label, meaning)
            yield Static()
            for state, (glyph, colour) in STATES.items():
                yield entry(f"{glyph} {state}", STATE_WORDS[state], colour)

    def _legend(self) -> Text:
        return Text.assemble(
            ("memory".ljust(LABEL_WIDTH), look.DIM),
            ("━━━ ", look.WEIGHTS), "weights   ",
            ("━━━ ", look.KV), "KV used   ",
            (KV_FREE_GLYPH * 3 + " ", look.KV_FREE), "KV free   ",
            ("─── ", look.FAINT), "free\n",
        )  # fmt: skip


def entry(label: str, meaning: str | Text, colour: str = look.DIM) -> Static:
    """A label, and a text that wraps beside it."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=LABEL_WIDTH - 1, no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_row(Text(label, colour), meaning)
    return Static(grid)
