"""How are several policies drawn beside each other, and beside what others published?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmhostd.evaluation.drawing import COLOURS, INK, PALE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POLICY_COLOURS = {
    "sllm": COLOURS[4], "sllm+c": COLOURS[3], "sllm+c+s": COLOURS[2], "slinfer": COLOURS[1], "llmhostd": COLOURS[0],
}  # fmt: skip
BAR_SHARE = 0.84
"""Of the room that a group of bars has."""

Values = Sequence[float | None]
"""None: there is nothing to draw."""


@dataclass(frozen=True, slots=True)
class Series:
    """One policy's figures, over groups of bars or along a line."""

    name: str
    values: Values
    paper: Values = ()
    """What the paper says of the same."""
    reimplemented: Values = ()
    """What its independent reimplementation says."""
    half_widths: Values = ()
    """Of 95 % confidence intervals."""


def draw_bars(
    axes: "Axes", groups: Sequence[str], series: Sequence[Series], *, most: float | None = None, written: bool = False
) -> None:
    """Groups of bars, one bar a policy; published figures are marks on them. `written`: with figures in the bars."""
    width = BAR_SHARE / max(len(series), 1)
    for position, one in enumerate(series):
        at = [group + width * (position - (len(series) - 1) / 2) for group in range(len(groups))]
        known = [(x, value) for x, value in zip(at, one.values, strict=True) if value is not None]
        axes.bar([x for x, _ in known], [value for _, value in known], width=width * 0.92, color=colour_of(one.name),
                 label=one.name)  # fmt: skip
        for x, value in known if written else ():
            axes.text(x, 3, f"{value:.1f}", rotation=90, ha="center", va="bottom", fontsize=6.5, color="white")
        _whiskers(axes, at, one)
        _marks(axes, at, one)
    axes.set_xticks(range(len(groups)), groups)
    axes.yaxis.grid(visible=True)
    axes.set_xlim(-0.5, len(groups) - 0.5)
    if most is not None:
        axes.set_ylim(0, most)


def draw_lines(axes: "Axes", at: Sequence[float], series: Sequence[Series], *, names: Sequence[str] = ()) -> None:
    """One line a policy. With `names`, the points are evenly spaced and called so."""
    places = list(range(len(names))) if names else list(at)
    for one in series:
        known = [(x, value) for x, value in zip(places, one.values, strict=True) if value is not None]
        axes.plot([x for x, _ in known], [value for _, value in known], marker="o", color=colour_of(one.name),
                  label=one.name)  # fmt: skip
        _marks(axes, places, one)
    if names:
        axes.set_xticks(places, names)
    axes.yaxis.grid(visible=True)


def legend(figure: "Figure", names: Sequence[str], *, paper: bool = False, reimplemented: bool = False) -> None:
    """One legend for all small multiples, below them."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Patch | Line2D] = [Patch(color=colour_of(name), label=name) for name in names]
    if paper:
        handles.append(Line2D([], [], **_PAPER, label="SLINFER's paper"))
    if reimplemented:
        handles.append(Line2D([], [], **_REIMPLEMENTED, label="its reimplementation"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), handlelength=1.2, columnspacing=1.6)


def colour_of(name: str) -> str:
    """A policy's colour, or one for anything else."""
    return POLICY_COLOURS.get(name, PALE)


_PAPER: Any = {
    "marker": "D", "linestyle": "none", "markersize": 5, "markerfacecolor": "white", "markeredgecolor": INK,
    "markeredgewidth": 1.1,
}  # fmt: skip
_REIMPLEMENTED: Any = {
    "marker": "o", "linestyle": "none", "markersize": 4.6, "markerfacecolor": INK, "markeredgecolor": "white",
    "markeredgewidth": 0.8,
}  # fmt: skip


def _marks(axes: "Axes", at: Sequence[float], one: Series) -> None:
    for values, look in ((one.paper, _PAPER), (one.reimplemented, _REIMPLEMENTED)):
        known = [(x, value) for x, value in zip(at, values, strict=False) if value is not None]
        if known:
            axes.plot([x for x, _ in known], [value for _, value in known], zorder=5, clip_on=False, **look)


def _whiskers(axes: "Axes", at: Sequence[float], one: Series) -> None:
    known = [
        (x, value, half)
        for x, value, half in zip(at, one.values, one.half_widths, strict=False)
        if value is not None and half is not None
    ]
    if known:
        xs, values, halves = zip(*known, strict=True)
        axes.errorbar(xs, values, yerr=halves, fmt="none", ecolor=INK, elinewidth=1, capsize=2.5)
