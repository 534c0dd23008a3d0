"""Whose byte is it on every node, and how did that change?"""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

from llmhostd_tui.picture import Picture
from llmhostd_tui.widgets.banner import Banner
from llmhostd_tui.widgets.memory import NodeMemory, legend
from llmhostd_tui.widgets.totals import Totals

LEAST_LINES, MOST_LINES = 3, 12
"""Of a node's chart."""
AROUND = 6
"""Lines around the nodes, and around each node's chart."""


class Memory(Screen[None]):
    """One part per node; scrolls where there is no room."""

    DEFAULT_CSS = """
    Memory { background: $background; }
    Memory #legend { height: auto; margin: 0 1 1 1; }
    Memory VerticalScroll { height: 1fr; scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,m", "app.pop_screen", "overview")]

    def compose(self) -> ComposeResult:
        """Lay out; nodes come with the first picture."""
        yield Totals()
        yield Banner()
        yield Static(legend(), id="legend")
        yield VerticalScroll(id="nodes-memory")
        yield Footer(show_command_palette=False)

    @property
    def drawable(self) -> bool:
        """Whether the first widget and the innermost are there: all is composed, and nothing taken down yet."""
        return bool(self.query(Totals)) and bool(self.query("#nodes-memory"))

    def show(self, picture: Picture, *, paused: bool, unseen: int) -> None:
        """Draw the picture."""
        self.query_one(Totals).show(picture, paused=paused, unseen=unseen)
        self.query_one(Banner).show(picture.troubles() if picture.snapshot else [])
        nodes = picture.snapshot.nodes if picture.snapshot else ()
        box = self.query_one("#nodes-memory", VerticalScroll)
        parts = list(box.query(NodeMemory))
        for part in parts[len(nodes) :]:
            part.remove()
        for _ in nodes[len(parts) :]:
            part = NodeMemory()
            parts.append(part)
            box.mount(part)
        for node, part in zip(nodes, parts, strict=False):
            part.show(node, picture, box.size.width - 3, self._lines(picture, len(nodes)))

    def _lines(self, picture: Picture, nodes: int) -> int:
        """What every chart may take, so that all nodes and instances are in sight if that is possible."""
        instances = len(picture.snapshot.instances) if picture.snapshot else 0
        spare = self.size.height - AROUND - instances
        return min(MOST_LINES, max(LEAST_LINES, spare // max(1, nodes) - AROUND + 1))
