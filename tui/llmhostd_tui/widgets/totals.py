"""How does the box as a whole do?"""

from rich.text import Text
from textual.widgets import Static

from llmhostd_tui import look
from llmhostd_tui.picture import Picture
from llmhostd_tui.words import spell_rate, spell_seconds, spell_share

SLO_GOOD, SLO_FAIR = 0.99, 0.95
GAP = "   "


class Totals(Static):
    """One line: who, since when, how much, how well."""

    DEFAULT_CSS = "Totals { height: 1; background: $panel; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }"

    def show(self, picture: Picture, *, paused: bool, unseen: int) -> None:
        """Draw; what there is no room for is left out from the left side of the figures."""
        width = max(1, self.app.size.width - 2)
        left = Text.assemble(
            (" llmhostd ", f"bold {look.GROUND} on {look.ACCENT}"), "  ", _liveness(picture, paused, unseen)
        )
        figures = _figures(picture)
        while figures and left.cell_len + sum(part.cell_len + len(GAP) for part in figures) > width:
            figures.pop(0)
        right = Text(GAP).join(figures)
        room = max(1, width - left.cell_len - right.cell_len)
        self.update(Text.assemble(left, " " * room, right))


def _liveness(picture: Picture, paused: bool, unseen: int) -> Text:
    if paused:
        return Text(f"‖ paused, {unseen} more", f"bold {look.WARN}")
    if picture.lost is not None:
        return Text("✗ no answer", f"bold {look.BAD}")
    return Text("● live", look.GOOD) if picture.snapshot else Text("○ connecting", look.DIM)


def _figures(picture: Picture) -> list[Text]:
    """Least important first."""
    if picture.snapshot is None:
        return []
    host, per_s, share = picture.snapshot.host, picture.requests_per_s(), picture.slo_share()
    slo_colour = look.GOOD if share is None or share >= SLO_GOOD else look.WARN if share >= SLO_FAIR else look.BAD
    return [
        Text(picture.address, look.DIM),
        Text.assemble(host.version, (f"  up {spell_seconds(host.uptime_s)}", look.DIM)),
        _figure(str(len(picture.snapshot.models)), "models"),
        *([_figure(str(host.failed), "failed", look.BAD)] if host.failed else []),
        _figure("-" if per_s is None else spell_rate(per_s), "req/s"),
        _figure(spell_rate(picture.output_tokens_per_s()), "tok/s"),
        _figure(str(host.refused), "refused", look.WARN if host.refused else look.TEXT),
        _figure("-" if share is None else spell_share(share), "SLO met", slo_colour if share is not None else look.DIM),
    ]


def _figure(amount: str, what: str, colour: str = look.TEXT) -> Text:
    return Text.assemble((amount, f"bold {colour}"), (f" {what}", look.DIM))
