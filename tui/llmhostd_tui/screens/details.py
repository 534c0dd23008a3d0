"""What is known of one thing, and what was decided about it?"""

from collections.abc import Iterator
from typing import ClassVar

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from llmhostd.domain.snapshot import Decision, InstanceSnapshot, NodeSnapshot, RequestSnapshot
from llmhostd.domain.words import Word
from llmhostd_tui import look
from llmhostd_tui.picture import Picture
from llmhostd_tui.widgets.decisions import COLOURS, clock
from llmhostd_tui.widgets.nodes import NodeRow
from llmhostd_tui.widgets.requests import RequestRow
from llmhostd_tui.words import spell_bytes, spell_kind, spell_seconds, spell_share

LATEST = 40
"""Decisions that are listed."""


class Details(ModalScreen[None]):
    """Everything about a node, an instance, a request or a decision; alive while open."""

    DEFAULT_CSS = """
    Details { align: center middle; background: $background 60%; }
    Details > VerticalScroll {
        width: 110; max-width: 96%; height: auto; max-height: 94%; padding: 1 2;
        background: $surface; border: round $faint; border-title-color: $accent; border-subtitle-color: $dim;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "app.pop_screen", "back")]

    def __init__(self, thing: object, picture: Picture) -> None:
        super().__init__()
        self._thing = _word(thing)
        self._picture = picture

    def compose(self) -> ComposeResult:
        """One text that scrolls."""
        with VerticalScroll() as box:
            box.border_subtitle = "esc: back"
            yield Static(id="facts")

    def on_mount(self) -> None:
        """Draw at once."""
        self.show(self._picture)

    @property
    def drawable(self) -> bool:
        """Whether the innermost widget is there: not before all is composed, nor once it is being taken down."""
        return bool(self.query("#facts"))

    def show(self, picture: Picture) -> None:
        """Draw what is known of it now; of what is gone, the last that was known."""
        current = _find(self._thing, picture)
        self._thing = current or self._thing
        title, about = _names(self._thing)
        gone = "" if current else "  (gone)"
        self.query_one(VerticalScroll).border_title = title + gone
        related = [one for one in picture.all_decisions() if one.subject in about and one != self._thing]
        parts: list[RenderableType] = [_grid(_facts(self._thing))]
        if related:
            parts += [Text(f"\nDecisions about {', '.join(about)}", look.ACCENT), _history(related[:LATEST])]
        self.query_one("#facts", Static).update(Group(*parts))


def _word(thing: object) -> Word:
    match thing:
        case NodeRow():
            return thing.node
        case RequestRow():
            return thing.request
        case Word():
            return thing
    raise TypeError(type(thing))


def _find(thing: Word, picture: Picture) -> Word | None:
    snapshot = picture.snapshot
    if isinstance(thing, Decision) or snapshot is None:
        return thing
    for known in (*snapshot.nodes, *snapshot.instances, *snapshot.requests):
        if type(known) is type(thing) and _names(known) == _names(thing):
            return known
    return None


def _names(thing: Word) -> tuple[str, tuple[str, ...]]:
    """Title, and the subjects whose decisions are about it."""
    match thing:
        case NodeSnapshot():
            return f"node {thing.id}", (thing.id,)
        case InstanceSnapshot():
            return f"instance {thing.id}", (thing.id, thing.model)
        case RequestSnapshot():
            return f"request {thing.id}", (thing.id,)
        case Decision():
            return spell_kind(thing.kind), (thing.subject,)
    raise TypeError(type(thing))


def _facts(thing: Word) -> Iterator[tuple[str, Text]]:
    """Every field, its unit spelled."""
    for field in msgspec.structs.fields(thing):
        value = getattr(thing, field.name)
        yield _label(field.name), Text(_spell(field.name, value, thing))


def _label(name: str) -> str:
    """The words of a field's name; its unit stands at the value, unless that is a rate."""
    for suffix, word in (("_bytes_per_s", " bandwidth"), ("_per_s", " per second")):
        if name.endswith(suffix):
            return (name.removesuffix(suffix) + word).replace("_", " ")
    return name.removesuffix("_bytes").removesuffix("_unix_s").removesuffix("_s").replace("_", " ")


def _spell(name: str, value: object, thing: Word) -> str:
    if name == "at_unix_s" and isinstance(thing, Decision):
        return clock(thing)
    if name == "kind":
        return spell_kind(str(value))
    if name.endswith("_bytes") and isinstance(value, int):
        return spell_bytes(value)
    if name.endswith("_bytes_per_s") and isinstance(value, float):
        return f"{spell_bytes(int(value))}/s"
    if name.endswith("_per_s") and isinstance(value, float):
        return f"{value:.1f}"
    if name.endswith("_s") and isinstance(value, float):
        return spell_seconds(value)
    if name in ("busy", "start_error") and isinstance(value, float):
        return spell_share(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "-"
    return "-" if value in (None, "") else str(value)


def _grid(rows: Iterator[tuple[str, Text]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style=look.DIM)
    grid.add_column(ratio=1)
    for label, value in rows:
        grid.add_row(label, value)
    return grid


def _history(decisions: list[Decision]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style=look.DIM)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    for one in decisions:
        grid.add_row(clock(one), Text(spell_kind(one.kind), COLOURS.get(one.kind, look.TEXT)), Text(one.because))
    return grid
