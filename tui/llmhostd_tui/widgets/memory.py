"""Who holds which bytes of a node, and how did that change over the last minutes?"""

from collections.abc import Iterator, Sequence

from rich.text import Text
from textual.widgets import Static

from llmhostd.domain.snapshot import InstanceSnapshot, NodeSnapshot
from llmhostd_tui import look
from llmhostd_tui.memory import KEPT_S, Moment
from llmhostd_tui.picture import Picture
from llmhostd_tui.widgets.area import area
from llmhostd_tui.widgets.bars import FULL, split_bar
from llmhostd_tui.widgets.instances import draw_state
from llmhostd_tui.widgets.nodes import KV_FREE_GLYPH, mark
from llmhostd_tui.words import KIB, UNITS, spell_bytes, spell_seconds

USED, HELD, PROMISED, FREE = look.KV, look.KV_FREE, look.PROMISED, look.UNUSED
AXIS = 10
"""Cells at the left, for amounts."""
NAME, STATE, FIGURES = 30, 12, 34
LEAST_BAR = 16
SHORT_NAME, GLYPH = 22, 1
"""Where there is no room for a bar beside the full ones."""


class NodeMemory(Static):
    """One node: its amounts, what they were, and its instances by what they hold."""

    DEFAULT_CSS = "NodeMemory { height: auto; margin: 0 1 1 1; text-wrap: nowrap; text-overflow: ellipsis; }"

    def show(self, node: NodeSnapshot, picture: Picture, width: int, height: int) -> None:
        """Draw in `width` cells, the chart `height` lines high."""
        snapshot = picture.snapshot
        instances = [one for one in (snapshot.instances if snapshot else ()) if one.node_id == node.id]
        uptime_s = snapshot.host.uptime_s if snapshot else 0.0
        columns = picture.memory.columns(node.id, max(1, width - AXIS))
        lines = [_title(node, uptime_s), _amounts(Moment.of(node)), *_chart(columns, height)]
        whole = max(1, Moment.of(node).budget)
        held = sorted(instances, key=lambda one: (-one.held_bytes - one.kv_bytes, one.id))
        lines += [_instance(one, whole, width) for one in held]
        self.update(Text("\n").join(lines))


def legend() -> Text:
    """Say what the colours are."""
    return Text.assemble(
        (" █", USED), (" used", look.DIM), ("   █", HELD), (" held, not used", look.DIM), ("   █", PROMISED),
        (" promised, not yet held", look.DIM), ("   █", FREE), (" free of the budget", look.DIM),
        (f"     instances: {FULL}", look.WEIGHTS), (" weights", look.DIM), (f"  {FULL}", USED), (" KV used", look.DIM),
        (f"  {KV_FREE_GLYPH}", HELD), (" KV pool free", look.DIM),
    )  # fmt: skip


def _title(node: NodeSnapshot, uptime_s: float) -> Text:
    text = Text.assemble(mark(node), (node.id, f"bold {look.TEXT}"))
    if node.draining:
        text.append("  draining", f"bold {look.WARN}")
    if node.scaling_s and uptime_s:
        share = f"{node.scaling_s / uptime_s:.2%}".replace("%", " %")
        text.append(f"  KV resizes: {spell_seconds(node.scaling_s)}, {share}", look.DIM)
    return text.append(f"  {node.kind}, {node.engine}, {node.hardware}", look.DIM)


def _amounts(now: Moment) -> Text:
    unit = spell_bytes(now.budget).split()[1]
    return Text("  ").join(
        Text.assemble((f"{what} ", look.DIM), (f"{amount / KIB ** UNITS.index(unit):.2f} {unit}", colour))
        for what, amount, colour in (
            ("used", now.used, USED), ("held", now.held, look.TEXT), ("promised", now.promised, PROMISED),
            ("budget", now.budget, look.TEXT),
        )
    )  # fmt: skip


def _chart(columns: Sequence[Moment | None], height: int) -> Iterator[Text]:
    top = max((max(one.budget, one.held, one.promised) for one in columns if one), default=0)
    shares = [None if one is None or not top else _shares(one, top) for one in columns]
    drawn = area(shares, height, (USED, HELD, PROMISED, FREE), look.GROUND)
    for line, text in enumerate(drawn):
        label = spell_bytes(top) if line == 0 else "0" if line == height - 1 else ""
        yield Text.assemble((f"{label:>{AXIS - 1}} ", look.DIM), text)
    ago = f"{spell_seconds(KEPT_S)} ago"
    yield Text(" " * AXIS + ago + "now".rjust(max(0, len(columns) - len(ago))), look.DIM)


def _shares(one: Moment, top: int) -> tuple[float, ...]:
    used, held = min(one.used, one.held), one.held
    promised = max(one.promised, held)
    return tuple(amount / top for amount in (used, held, promised, max(one.budget, promised)))


def _instance(one: InstanceSnapshot, whole: int, width: int) -> Text:
    roomy = width >= NAME + STATE + FIGURES + LEAST_BAR
    name_cells, state_cells = (NAME, STATE) if roomy else (SHORT_NAME, GLYPH)
    name, state = Text(one.id), draw_state(one.state)
    name.truncate(name_cells, overflow="ellipsis", pad=True)
    state.truncate(state_cells, pad=True)
    parts = [
        (one.held_bytes, look.WEIGHTS, FULL),
        (one.kv_used_bytes, USED, FULL),
        (one.kv_bytes - one.kv_used_bytes, HELD, KV_FREE_GLYPH),
    ]
    pool = f"KV {spell_bytes(one.kv_used_bytes)} of {spell_bytes(one.kv_bytes)}" if one.kv_bytes else "no KV"
    figures = f"{spell_bytes(one.held_bytes)}, {pool}"
    line = split_bar(parts, whole, max(1, width - name_cells - state_cells - FIGURES - 3))
    return Text.assemble(name, " ", state, " ", line, f" {figures:>{FIGURES}}")
