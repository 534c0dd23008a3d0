"""Which models are loaded, and who holds which bytes?"""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text

from llmhostd.domain.model import ModelState
from llmhostd.domain.snapshot import InstanceSnapshot
from llmhostd_tui import look
from llmhostd_tui.widgets.bars import bar
from llmhostd_tui.widgets.columns import Column
from llmhostd_tui.widgets.table import Table
from llmhostd_tui.words import spell_bytes, spell_seconds, spell_share

STATES = {
    ModelState.COLD: ("○", look.DIM),
    ModelState.LOADING: ("◔", look.WARN),
    ModelState.WARM: ("◐", look.WEIGHTS),
    ModelState.RESIDENT: ("●", look.GOOD),
    ModelState.UNLOADING: ("◌", look.DIM),
    ModelState.QUARANTINED: ("✗", look.BAD),
}
"""Glyph and colour; the glyph fills as the first token comes nearer."""
SHARE_FIGURES = 6


def _name(one: InstanceSnapshot, width: int) -> Text:
    del width
    return Text(one.id)


def draw_state(state: ModelState) -> Text:
    """Glyph, colour and word."""
    glyph, colour = STATES[state]
    return Text(f"{glyph} {state}", colour)


def _state(one: InstanceSnapshot, width: int) -> Text:
    del width
    if one.fetched_bytes is None or not one.fetch_bytes:
        return draw_state(one.state)
    glyph, colour = STATES[one.state]
    return Text(f"{glyph} net {spell_share(one.fetched_bytes / one.fetch_bytes)}", colour)


def _held(one: InstanceSnapshot, width: int) -> Text:
    del width
    return Text(spell_bytes(one.held_bytes) if one.held_bytes else "-", look.TEXT if one.held_bytes else look.DIM)


def _kv(one: InstanceSnapshot, width: int) -> Text:
    if not one.kv_bytes:
        return Text("none", look.DIM)
    share = one.kv_used_bytes / one.kv_bytes
    return bar(share, width - SHARE_FIGURES, look.KV) + Text(f"{spell_share(share):>{SHARE_FIGURES}}")


def _kv_bytes(one: InstanceSnapshot, width: int) -> Text:
    del width
    return Text(spell_bytes(one.kv_bytes) if one.kv_bytes else "", look.DIM)


def _running(one: InstanceSnapshot, width: int) -> Text:
    del width
    return Text(str(one.running), f"bold {look.TEXT}" if one.running else look.DIM)


def _idle(one: InstanceSnapshot, width: int) -> Text:
    del width
    busy = one.running or one.state in (ModelState.LOADING, ModelState.UNLOADING)
    return Text("" if busy else spell_seconds(one.idle_s), look.DIM)


def _start(one: InstanceSnapshot, width: int) -> Text:
    """What its start took, and what was foretold (~)."""
    del width
    told = "" if one.estimated_start_s is None else f"~{spell_seconds(one.estimated_start_s)}"
    took = "" if one.start_s is None else f"{spell_seconds(one.start_s)} "
    return Text(took, look.TEXT) + Text(told, look.DIM)


class Instances(Table[InstanceSnapshot]):
    """One row per instance."""

    columns: ClassVar[Sequence[Column[InstanceSnapshot]]] = (
        Column("INSTANCE", _name, 16, 34),
        Column("STATE", _state, 11, rank=1),
        Column("HELD", _held, 8, rank=2, right=True),
        Column("KV USED", _kv, 13, 30, rank=3),
        Column("OF", _kv_bytes, 8, rank=6, right=True),
        Column("RUN", _running, 3, rank=0, right=True),
        Column("IDLE", _idle, 8, rank=5, right=True),
        Column("START", _start, 14, 16, rank=4, right=True),
    )
    empty = "No model is loaded. A request loads the one that it asks for."

    def key_of(self, thing: InstanceSnapshot) -> str:
        """Name an instance."""
        return thing.id
