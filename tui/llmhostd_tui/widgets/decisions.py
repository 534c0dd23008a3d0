"""What was decided, and why?"""

import time
from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.text import Text

from llmhostd.domain.snapshot import Decision
from llmhostd_tui import look
from llmhostd_tui.widgets.columns import Column
from llmhostd_tui.widgets.table import Table
from llmhostd_tui.words import spell_kind

COLOURS = {
    "RefuseRequest": look.WARN,
    "QuarantineModel": look.BAD,
    "NodeDown": look.BAD,
    "LoadFailed": look.BAD,
    "RequestFailed": look.BAD,
    "RequestReturned": look.WARN,
    "LoadInstance": look.WEIGHTS,
    "RestInstance": look.WEIGHTS,
    "UnloadInstance": look.WEIGHTS,
    "SubmitRequest": look.KV,
    "IterationReported": look.DIM,
}


def clock(decision: Decision) -> str:
    """Local time of day, to the tenth of a second."""
    tenths = int(decision.at_unix_s * 10 % 10)
    return f"{time.strftime('%H:%M:%S', time.localtime(decision.at_unix_s))}.{tenths}"


def _at(decision: Decision, width: int) -> Text:
    del width
    return Text(clock(decision), look.DIM)


def _kind(decision: Decision, width: int) -> Text:
    del width
    return Text(spell_kind(decision.kind), COLOURS.get(decision.kind, look.TEXT))


def _subject(decision: Decision, width: int) -> Text:
    del width
    return Text(decision.subject)


def _node(decision: Decision, width: int) -> Text:
    del width
    return Text(decision.node_id or "", look.DIM)


def _why(decision: Decision, width: int) -> Text:
    del width
    return Text(decision.because, look.DIM if decision.kind == "IterationReported" else look.TEXT)


def matches(decision: Decision, wanted: str) -> bool:
    """Whether every word of `wanted` is somewhere in the decision, and no word after a `-` is; case does not matter."""
    words = (spell_kind(decision.kind), decision.kind, decision.subject, decision.node_id or "", decision.because)
    said = " ".join(words).casefold()
    asked = wanted.casefold().split()
    return all(word[1:] not in said if word[0] == "-" and word[1:] else word in said for word in asked)


class Decisions(Table[Decision]):
    """Newest first."""

    columns: ClassVar[Sequence[Column[Decision]]] = (
        Column("DECISIONS", _at, 10),
        Column("WHAT", _kind, 11, 13, rank=2),
        Column("OF", _subject, 12, 26, rank=1),
        Column("ON", _node, 6, rank=3),
        Column("WHY", _why, 36, 400),
    )
    empty = "Nothing was decided yet."

    def show_matching(self, decisions: Iterable[Decision], wanted: str) -> None:
        """Draw those that the filter lets through."""
        self.empty = f"No decision has {wanted!r}." if wanted else Decisions.empty
        self.show([decision for decision in decisions if matches(decision, wanted)])

    def key_of(self, thing: Decision) -> str:
        """Name a decision; a restarted daemon counts from the start again, so the time belongs to it."""
        return f"{thing.at_unix_s}/{thing.sequence}"
