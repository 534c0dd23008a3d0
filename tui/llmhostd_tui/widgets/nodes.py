"""What is each node doing this second?"""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text

from llmhostd.domain.snapshot import Decision, NodeSnapshot
from llmhostd_tui import look
from llmhostd_tui.picture import Picture
from llmhostd_tui.widgets.bars import FULL, bar, sparkline, split_bar
from llmhostd_tui.widgets.columns import Column
from llmhostd_tui.widgets.table import Table
from llmhostd_tui.words import KIB, UNITS, spell_bytes, spell_rate, spell_share

KV_FREE_GLYPH = "╍"
LEGEND = (
    (f" {FULL}", look.WEIGHTS),
    (" weights", look.DIM),
    (f" {FULL}", look.KV),
    (" KV", look.DIM),
    (f" {KV_FREE_GLYPH}", look.KV_FREE),
    (" KV free", look.DIM),
)
BUSY_FIGURES, MEMORY_FIGURES, TOKEN_FIGURES = 7, 16, 11


class NodeRow:
    """A node, what its tokens per second were, and what it was last seen to run."""

    def __init__(self, node: NodeSnapshot, tokens_per_s: Sequence[float], running: Decision | None) -> None:
        self.node = node
        self.tokens_per_s = tokens_per_s
        self.running = running


def _name(row: NodeRow, width: int) -> Text:
    del width
    return Text.assemble(mark(row.node), row.node.id)


def mark(node: NodeSnapshot) -> tuple[str, str]:
    """Draw whether it is used, is not (it starts, or is drained), or is down."""
    if node.up and not node.draining:
        return "● ", look.GOOD
    return ("◌ ", look.WARN) if node.up or not node.restarts else ("✗ ", look.BAD)


def _busy(row: NodeRow, width: int) -> Text:
    share = bar(row.node.busy, width - BUSY_FIGURES, look.ACCENT)
    return share + Text(f"{spell_share(row.node.busy):>{BUSY_FIGURES}}")


def _memory(row: NodeRow, width: int) -> Text:
    node = row.node
    parts = [
        (node.weights_bytes, look.WEIGHTS, FULL),
        (node.kv_used_bytes, look.KV, FULL),
        (node.kv_bytes - node.kv_used_bytes, look.KV_FREE, KV_FREE_GLYPH),
    ]
    figures = _of(node.weights_bytes + node.kv_bytes, node.memory_bytes)
    return split_bar(parts, node.memory_bytes, width - MEMORY_FIGURES) + Text(f"{figures:>{MEMORY_FIGURES}}")


def _of(part: int, whole: int) -> str:
    """`6.1 / 12.0 GiB`: both in the unit of the whole."""
    figures, unit = spell_bytes(whole).split()
    return f"{part / KIB ** UNITS.index(unit):.1f} / {figures} {unit}"


def _tokens(row: NodeRow, width: int) -> Text:
    line = sparkline(row.tokens_per_s, width - TOKEN_FIGURES, look.ACCENT)
    return line + Text(f"{spell_rate(row.node.tokens_per_s) + ' tok/s':>{TOKEN_FIGURES}}")


def _iterations(row: NodeRow, width: int) -> Text:
    del width
    return Text(f"{spell_rate(row.node.iterations_per_s)} it/s", look.DIM)


def _hardware(row: NodeRow, width: int) -> Text:
    del width
    node = row.node
    return Text(f"{node.kind}, {node.engine}, {_cores(len(node.cores))}, {node.hardware}", look.DIM)


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"


class Nodes(Table[NodeRow]):
    """One row per node; a second line says what it runs and why, how far a measurement is, or that it is down."""

    columns: ClassVar[Sequence[Column[NodeRow]]] = (
        Column("NODE", _name, 6, 10),
        Column("BUSY", _busy, 13, 30, rank=1),
        Column("MEMORY", _memory, 32, 62, rank=2, legend=LEGEND),
        Column("TOKENS", _tokens, 17, 40, rank=3),
        Column("", _iterations, 9, rank=4, right=True),
        Column("HARDWARE", _hardware, 24, 60, rank=5),
    )
    empty = "No node: the daemon found no device that an engine can run on."

    def show_picture(self, picture: Picture) -> None:
        """Draw the nodes and their histories."""
        nodes = picture.snapshot.nodes if picture.snapshot else ()
        self.show([NodeRow(one, picture.tokens_per_s.get(one.id, ()), picture.running(one.id)) for one in nodes])

    def key_of(self, thing: NodeRow) -> str:
        """Name a node."""
        return thing.node.id

    def note_of(self, thing: NodeRow) -> Text | None:
        """Say what it does."""
        if not thing.node.up:
            restarts = thing.node.restarts
            return Text("  restarting its worker", look.BAD) if restarts else Text("  starting its worker", look.WARN)
        return _measuring(thing.node) or _running(thing) or _draining(thing.node)


def _running(row: NodeRow) -> Text | None:
    if row.running is None or not row.node.busy:
        return None
    return Text.assemble(("  runs ", look.DIM), row.running.subject, (f"  {row.running.because}", look.DIM))


def _draining(node: NodeSnapshot) -> Text | None:
    return Text("  drains: nothing new goes there", look.WARN) if node.draining else None


def _measuring(node: NodeSnapshot) -> Text | None:
    """Progress of a profile: `wren-160m 34/96`."""
    model, _, progress = node.profiling.rpartition(" ")
    done, _, total = progress.partition("/")
    if not (done.isdigit() and total.isdigit()) or int(done) >= int(total):
        return None
    label = Text.assemble(("  measuring ", look.DIM), model, " ")
    return label + bar(int(done) / int(total), 20, look.WARN) + Text(f" {done} of {total} samples", look.DIM)
