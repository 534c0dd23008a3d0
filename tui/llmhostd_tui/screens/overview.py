"""What is the box doing this second, on one screen?"""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal
from textual.screen import Screen
from textual.widgets import Footer, Input, Static

from llmhostd_tui.picture import Picture
from llmhostd_tui.widgets.absence import Absence
from llmhostd_tui.widgets.banner import Banner
from llmhostd_tui.widgets.decisions import Decisions
from llmhostd_tui.widgets.instances import Instances
from llmhostd_tui.widgets.nodes import Nodes
from llmhostd_tui.widgets.requests import Requests
from llmhostd_tui.widgets.totals import Totals

WIDTHS: list[tuple[int, str]] = [(0, "-narrow"), (140, "-wide")]
HEIGHTS: list[tuple[int, str]] = [(0, "-tiny"), (12, "-short"), (20, "-normal"), (36, "-tall")]


class Overview(Screen[None]):
    """Nodes; instances beside (or above) requests; decisions."""

    CSS_PATH = "overview.tcss"
    AUTO_FOCUS = ""
    HORIZONTAL_BREAKPOINTS = WIDTHS
    VERTICAL_BREAKPOINTS = HEIGHTS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("i", "iterations", "iterations"),
        Binding("tab", "app.focus_next", "next"),
        Binding("escape", "leave_filter", "clear filter", show=False),
    ]

    def __init__(self) -> None:
        super().__init__(classes="-absent")
        self._picture: Picture | None = None
        self._iterations = False

    def compose(self) -> ComposeResult:
        """Lay out; the style sheet places."""
        yield Totals()
        yield Banner()
        yield Absence()
        with Container(id="tables"):
            yield Nodes(id="nodes")
            with Container(id="middle"):
                yield Requests(id="requests")
                yield Instances(id="instances")
            yield Decisions(id="decisions")
            with Horizontal(id="filter-line"):
                yield Static("/", id="filter-mark")
                yield Input(
                    placeholder="words to find, -words to hide; enter keeps, esc clears", id="filter", compact=True
                )
        yield Footer(show_command_palette=False)

    @property
    def drawable(self) -> bool:
        """Whether the first widget and the innermost are there: all is composed, and nothing taken down yet."""
        return bool(self.query(Totals)) and bool(self.query("#filter"))

    def show(self, picture: Picture, *, paused: bool = False, unseen: int = 0) -> None:
        """Draw the picture."""
        self._picture = picture
        self.query_one(Totals).show(picture, paused=paused, unseen=unseen)
        self.query_one(Banner).show(picture.troubles() if picture.snapshot else [])
        appears = self.has_class("-absent") and picture.snapshot is not None
        self.set_class(picture.snapshot is None, "-absent")
        if appears:
            self.query_one(Requests).focus()
        self.set_class(picture.lost is not None, "-stale")
        if picture.snapshot is None:
            self.query_one(Absence).show(picture)
            return
        self.query_one(Nodes).show_picture(picture)
        self.query_one(Instances).show(picture.snapshot.instances)
        self.query_one(Requests).show_picture(picture)
        self._show_decisions()

    def _show_decisions(self) -> None:
        if self._picture is not None:
            wanted = self.query_one("#filter", Input).value
            told = self._picture.all_decisions() if self._iterations else self._picture.decisions
            self.query_one(Decisions).show_matching(told, wanted)

    def action_filter(self) -> None:
        """Type which decisions to see."""
        if not self.has_class("-absent"):
            self.add_class("-filtering")
            self.query_one("#filter", Input).focus()

    def action_iterations(self) -> None:
        """Show or hide iterations among the decisions."""
        self._iterations = not self._iterations
        self._show_decisions()

    def action_leave_filter(self) -> None:
        """See all decisions again."""
        if self.has_class("-filtering"):
            self.query_one("#filter", Input).value = ""
            self.remove_class("-filtering")
            self.query_one(Decisions).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while typing."""
        event.stop()
        self._show_decisions()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter, go back to the table."""
        event.stop()
        self.set_class(bool(event.value), "-filtering")
        self.query_one(Decisions).focus()
