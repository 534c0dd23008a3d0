"""How do rows of one kind stay readable while they change several times a second?

The cursor stays on its thing, not on its line; columns appear where they fit; the heading stays on top.
"""

from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from rich.style import Style
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.events import Click, Resize
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from llmhostd_tui import look
from llmhostd_tui.widgets.columns import GAP, Column, Placed, place

T = TypeVar("T")
MARGIN = 2
"""Cells at the left, where the cursor's mark is."""


class Table(ScrollView, Generic[T], can_focus=True):
    """A heading and rows. Subclasses say how to name a thing and what its columns are."""

    DEFAULT_CSS = """
    Table { height: auto; overflow-x: hidden; scrollbar-size-vertical: 1; background: $background; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "details"),
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup", "move(-10)", "page up", show=False),
        Binding("pagedown", "move(10)", "page down", show=False),
        Binding("home,g", "move(-1000000)", "first", show=False),
        Binding("end,G", "move(1000000)", "last", show=False),
    ]
    columns: ClassVar[Sequence[Column]] = ()  # type: ignore[type-arg]  # of T, which a class variable cannot say
    empty: str = ""
    """Said where there is no row."""

    class Opened(Message):
        """Somebody wants to know more about one thing."""

        def __init__(self, thing: object) -> None:
            super().__init__()
            self.thing = thing

    def __init__(self, *, id: str) -> None:  # noqa: A002  # Textual's name
        super().__init__(id=id)
        self._things: Sequence[T] = ()
        self._lines: list[tuple[int, Text | None]] = []
        """(index of a thing, None for its row or the text of the line under it)."""
        self._cursor = 0
        self._cursor_key: str | None = None
        self._placed: list[Placed[T]] = []

    def key_of(self, thing: T) -> str:
        """Name a thing for as long as it lives."""
        raise NotImplementedError

    def note_of(self, thing: T) -> Text | None:  # noqa: ARG002
        """Say something in a second line, where there is something to say."""
        return None

    def show(self, things: Sequence[T]) -> None:
        """Draw these, in this order."""
        self._things = things
        keys = [self.key_of(thing) for thing in things]
        if self._cursor_key in keys:
            self._cursor = keys.index(self._cursor_key)
        self._cursor = max(0, min(self._cursor, len(things) - 1))
        self._lines = []
        for index, thing in enumerate(things):
            self._lines.append((index, None))
            note = self.note_of(thing)
            if note is not None:
                self._lines.append((index, note))
        self._measure()
        if self._cursor_key is not None:
            self._keep_cursor_in_sight()
        self.refresh()

    def _measure(self) -> None:
        self._placed = place(self.columns, max(1, self.scrollable_content_region.width - MARGIN - 1))
        self.virtual_size = Size(0, 1 + max(1, len(self._lines)))

    def on_resize(self, event: Resize) -> None:
        """Other columns may fit now."""
        del event
        self._measure()
        self.refresh()

    def on_focus(self) -> None:
        """Show the cursor."""
        self.refresh()

    def on_blur(self) -> None:
        """Hide the cursor."""
        self.refresh()

    def on_click(self, event: Click) -> None:
        """Put the cursor there; a second click opens."""
        line = event.y - 1 + self.scroll_offset.y
        if event.y >= 1 and line < len(self._lines):
            self.action_move(self._lines[line][0] - self._cursor)
            if event.chain == 2:
                self.action_open()

    def action_move(self, rows: int) -> None:
        """Move the cursor; on the first row it lets go of its thing, so that new things show."""
        if not self._things:
            return
        self._cursor = max(0, min(self._cursor + rows, len(self._things) - 1))
        self._cursor_key = self.key_of(self._things[self._cursor]) if self._cursor else None
        self._keep_cursor_in_sight()
        self.refresh()

    def action_open(self) -> None:
        """Say more about the thing under the cursor."""
        if self._things:
            self.post_message(self.Opened(self._things[self._cursor]))

    def _keep_cursor_in_sight(self) -> None:
        line = next((at for at, (index, _) in enumerate(self._lines) if index == self._cursor), 0)
        room = max(1, self.size.height - 1)
        top = min(max(self.scroll_offset.y, line - room + 1), line)
        if top != self.scroll_offset.y:
            self.scroll_to(y=top, animate=False)

    def render_line(self, y: int) -> Strip:
        """Draw one line of the widget."""
        width = self.size.width
        if y == 0:
            return self._strip(self._heading(), width, Style(bgcolor=look.HEADING))
        line = y - 1 + self.scroll_offset.y
        if not self._lines:
            blank = Text(" " * MARGIN) + Text(self.empty if y == 1 else "", look.DIM)
            return self._strip(blank, width, self._ground())
        if line >= len(self._lines):
            return self._strip(Text(), width, self._ground())
        index, note = self._lines[line]
        current = self.has_focus and index == self._cursor
        text = Text.assemble(("▌ " if current else "  ", look.ACCENT), note or self._row(self._things[index]))
        return self._strip(text, width, Style(bgcolor=look.CURSOR) if current else self._ground())

    def _heading(self) -> Text:
        named = look.ACCENT if self.has_focus else look.TEXT
        titles = [
            Text.assemble((column.title, look.DIM if at else f"bold {named}"), *column.legend)
            for at, column in enumerate(placed.column for placed in self._placed)
        ]
        return Text(" " * MARGIN).append_text(self._line(titles))

    def _row(self, thing: T) -> Text:
        return self._line([placed.column.draw(thing, placed.width) for placed in self._placed])

    def _line(self, cells: Sequence[Text]) -> Text:
        return Text(" " * GAP).join([placed.fit(cell) for placed, cell in zip(self._placed, cells, strict=True)])

    def _ground(self) -> Style:
        return Style(color=look.TEXT, bgcolor=look.GROUND)

    def _strip(self, text: Text, width: int, style: Style) -> Strip:
        text = text.copy()
        text.truncate(width, overflow="ellipsis")
        strip = Strip(text.render(self.app.console)).apply_style(style)
        return strip.adjust_cell_length(width, style)
