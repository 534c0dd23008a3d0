"""Who waits, and how long can each next token wait (SLINFER eq. 1)?"""

import math
from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text

from llmhostd.domain.model import Slo
from llmhostd.domain.request import Tier
from llmhostd.domain.snapshot import RequestSnapshot
from llmhostd_tui import look
from llmhostd_tui.picture import Picture
from llmhostd_tui.widgets.bars import bar
from llmhostd_tui.widgets.columns import Column
from llmhostd_tui.widgets.table import Table
from llmhostd_tui.words import spell_seconds

COLOURS = ((0.1, look.BAD), (0.25, look.WARN), (0.5, look.TEXT), (math.inf, look.GOOD))
"""How to draw headroom below so many TTFT SLOs."""
HEADROOM_FIGURES = 10
PHASES = {"queued": look.DIM, "loading": look.WARN, "prefill": look.WEIGHTS, "decode": look.KV}
SCALE_WITHOUT_SLO_S = 2.0


class RequestRow:
    """A request and the promise of its model; half a headroom bar is one TTFT SLO, and no headroom fills it."""

    def __init__(self, request: RequestSnapshot, slo: Slo | None, goes_to: str = "") -> None:
        """`goes_to`: the node on which its context is being computed ahead, or will be after others'."""
        self.request = request
        self.goes_to = goes_to
        self.scale_s = slo.ttft_s if slo and slo.ttft_s > 0 else SCALE_WITHOUT_SLO_S


def _name(row: RequestRow, width: int) -> Text:
    del width
    return Text(row.request.id)


def _headroom(row: RequestRow, width: int) -> Text:
    left_s = row.request.headroom_s
    if row.request.tier is Tier.BEST_EFFORT:
        return Text("nobody waits".ljust(width), look.DIM)
    if left_s < 0:
        late = f"late {spell_seconds(-left_s)}"
        return bar(0, width - len(late) - 1, look.BAD) + Text(f" {late}", f"bold {look.BAD}")
    promises = left_s / row.scale_s
    colour = next(colour for below, colour in COLOURS if promises < below)
    return bar(promises / (promises + 1), width - HEADROOM_FIGURES, colour) + Text(
        f"{spell_seconds(left_s):>{HEADROOM_FIGURES}}", colour
    )


def _phase(row: RequestRow, width: int) -> Text:
    del width
    return Text(row.request.phase, PHASES.get(row.request.phase, look.TEXT))


def _tokens(row: RequestRow, width: int) -> Text:
    del width
    return Text.assemble(str(row.request.tokens_out), (f"/{row.request.max_tokens}", look.DIM))


def _prompt(row: RequestRow, width: int) -> Text:
    del width
    return Text(str(row.request.prompt_tokens), look.DIM)


def _model(row: RequestRow, width: int) -> Text:
    del width
    return Text(row.request.model)


def _notes(row: RequestRow, width: int) -> Text:
    del width
    moves = row.request.moves
    if row.goes_to:
        return Text(f"→ {row.goes_to}", look.ACCENT)
    tier = "flex " if row.request.tier is Tier.BEST_EFFORT else ""
    return Text.assemble((tier, look.DIM), (f"{moves} move{'s' * (moves > 1)}" if moves else "", look.WARN))


def _age(row: RequestRow, width: int) -> Text:
    del width
    return Text(spell_seconds(row.request.age_s), look.DIM)


class Requests(Table[RequestRow]):
    """One row per live request, least headroom first."""

    columns: ClassVar[Sequence[Column[RequestRow]]] = (
        Column("REQUEST", _name, 8, 14, rank=1),
        Column("HEADROOM", _headroom, 21, 30),
        Column("PHASE", _phase, 7, rank=3),
        Column("TOKENS", _tokens, 8, 10, rank=2, right=True),
        Column("MODEL", _model, 10, 28, rank=4),
        Column("TIER, MOVES", _notes, 12, rank=5),
        Column("AGE", _age, 8, rank=6, right=True),
        Column("PROMPT", _prompt, 6, rank=7, right=True),
    )
    empty = "Nobody waits for an answer."

    def show_picture(self, picture: Picture) -> None:
        """Draw the live requests."""
        seen = picture.snapshot
        slos = {model.name: model.slo for model in seen.models} if seen else {}
        nodes = {one.id: one.node_id for one in seen.instances} if seen else {}
        rows = [
            (one, nodes.get(one.moving_to, "") if one.moving_to else one.follows_to or "") for one in picture.requests()
        ]
        self.show([RequestRow(one, slos.get(one.model), goes_to) for one, goes_to in rows])

    def key_of(self, thing: RequestRow) -> str:
        """Name a request."""
        return thing.request.id
