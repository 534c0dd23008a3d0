"""How does a plan look on paper?"""

from pathlib import Path
from typing import TYPE_CHECKING

from llmhostd.domain.errors import CallerError
from llmhostd.evaluation import page
from llmhostd.evaluation import plan_words as words
from llmhostd.evaluation.drawing import (
    COLOURS,
    FAIR,
    GOOD,
    GRID,
    INK,
    PALE,
    as_svg,
    new_figure,
    quality,
    style,
    write,
    write_png,
)
from llmhostd.evaluation.limit import GOOD as PROMISED
from llmhostd.evaluation.planning import Plan
from llmhostd.evaluation.question import ModelAnswer
from llmhostd.evaluation.watching import Miss

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_MODELS = 24
"""Bars in a figure; the worst are drawn."""
KINDS = (".png", ".html")
MISS_COLOURS = dict(zip(Miss, (COLOURS[2], COLOURS[1], COLOURS[5], COLOURS[7], COLOURS[4]), strict=True))


def write_plan(plan: Plan, path: Path, about: str) -> None:
    """Draw into a PNG, or into an HTML page that needs nothing beside it. `about`: which box, which traffic.

    Raises CallerError for another ending, and OperatorError if the file cannot be written or matplotlib is missing.
    """
    check_kind(path)
    with style():
        figure = draw(plan)
        if path.suffix.lower() == ".png":
            write_png(figure, path)
        else:
            write(path, _page(plan, about, as_svg(figure)))


def check_kind(path: Path) -> None:
    """Raises CallerError for a file that is neither."""
    if path.suffix.lower() not in KINDS:
        raise CallerError(f"--plot: {path} is neither a .png nor an .html file", field="plot")


def draw(plan: Plan) -> "Figure":
    """Models, what they lack, nodes, and how much traffic each box takes. Within `style()`."""
    limits = any(one.limit for one in plan.outlooks)
    shown = _worst(plan)
    height = max(3.4, 0.24 * len(shown) + 1.5)
    figure, ((models, use, more),) = new_figure(1, 3, width=13, height=height, widths=(1.5, 1, 1.4))
    _draw_models(models, shown, len(plan.as_it_is.answer.models))
    _draw_nodes(use, plan)
    (_draw_limits if limits else _draw_variants)(more, plan)
    figure.suptitle(words.verdict(plan), x=0.01, ha="left", fontsize=11.5, fontweight="bold")
    return figure


def _worst(plan: Plan) -> list[ModelAnswer]:
    models = plan.as_it_is.answer.models
    return sorted(models, key=lambda one: (one.attainment, -one.requests))[:MOST_MODELS]


def _draw_models(axes: "Axes", shown: list[ModelAnswer], models: int) -> None:
    """Promises kept, and how the others were missed."""
    rows = range(len(shown))
    axes.barh(
        rows, [100 * one.attainment for one in shown], color=[quality(one.attainment) for one in shown], height=0.7
    )
    left = [100 * one.attainment for one in shown]
    for miss in Miss:
        widths = [100 * one.missed.get(miss, 0) / one.requests for one in shown]
        if any(widths):
            axes.barh(
                rows, widths, left=left, height=0.7, color=MISS_COLOURS[miss], alpha=0.35, label=f"missed: {miss}"
            )
            left = [a + b for a, b in zip(left, widths, strict=True)]
    for row, one in enumerate(shown):
        axes.text(
            101, row, f"{words.percent(one.attainment)} of {one.requests:,}", va="center", fontsize=7.5, color=PALE
        )
    axes.set(yticks=list(rows), yticklabels=[str(one.model) for one in shown], xlim=(0, 124), xlabel="requests, %")
    axes.set_xticks([0, 25, 50, 75, 100])
    axes.invert_yaxis()
    axes.spines["left"].set_visible(False)
    axes.set_title("Promises kept" + (f" (the {len(shown)} worst of {models} models)" if models > len(shown) else ""))
    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.14), ncols=3)


def _draw_nodes(axes: "Axes", plan: Plan) -> None:
    """What the nodes do with this traffic."""
    nodes = plan.as_it_is.answer.nodes
    for bar, (name, values) in enumerate({
        "computes": [node.busy for node in nodes],
        "loads": [node.loading for node in nodes],
        "memory held": [node.memory for node in nodes],
    }.items()):  # fmt: skip
        at = [row + 0.26 * (bar - 1) for row in range(len(nodes))]
        axes.barh(at, [100 * value for value in values], height=0.24, color=COLOURS[bar], label=name)
    for row, node in enumerate(nodes):
        axes.plot([100 * node.memory_peak] * 2, [row + 0.14, row + 0.38], color=INK, linewidth=1.2)
    axes.set(yticks=range(len(nodes)), yticklabels=[str(node.node) for node in nodes], xlim=(0, 102), xlabel="%",
             ylim=(-0.6, max(len(nodes), 4) - 0.4))  # fmt: skip
    axes.xaxis.grid(visible=True)
    axes.invert_yaxis()
    axes.set_title("Nodes (line: memory's peak)")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3)


def _draw_limits(axes: "Axes", plan: Plan) -> None:
    """Promises kept over traffic, for each box."""
    for colour, one in zip(COLOURS, (each for each in plan.outlooks if each.limit), strict=False):
        assert one.limit is not None  # noqa: S101 - chosen above
        speeds = [speed for speed, _ in one.limit.tried]
        met = [100 * share for _, share in one.limit.tried]
        width = 2.4 if one is plan.as_it_is else 1.4
        label = f"{one.name}: {words.holds(one.limit)}"
        axes.plot(speeds, met, marker="o", color=colour, label=label, linewidth=width)
    axes.axhline(100 * PROMISED, color=FAIR, linewidth=1, linestyle=(0, (4, 3)))
    axes.axvline(1, color=GRID, linewidth=1.5)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x" if value >= 1 else f"1/{1 / value:g}")
    axes.set(xlabel="times this traffic", ylabel="requests met, %")
    axes.yaxis.grid(visible=True)
    axes.set_title("How much traffic it takes (dashed: 99 %)")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)


def _draw_variants(axes: "Axes", plan: Plan) -> None:
    """Promises kept in each variant."""
    rows = range(len(plan.outlooks))
    met = [100 * one.answer.attainment for one in plan.outlooks]
    axes.barh(rows, met, height=0.6, color=[GOOD, *[COLOURS[4]] * (len(met) - 1)])
    for row, value in enumerate(met):
        axes.text(value + 1, row, words.percent(value / 100), va="center", fontsize=7.5, color=PALE)
    axes.set(yticks=rows, yticklabels=[one.name for one in plan.outlooks], xlim=(0, 118), xlabel="requests met, %")
    axes.set_xticks([0, 25, 50, 75, 100])
    axes.invert_yaxis()
    axes.set_title("What more, or less, would change")


def _page(plan: Plan, about: str, figure: str) -> bytes:
    answer = plan.as_it_is.answer
    models = page.table(
        ("model", "requests", "SLO met", "TTFT p50", "TTFT p99", "TTFT SLO", "cold starts", "missed"),
        [
            (one.model, f"{one.requests:,}",
             page.Cell(words.percent(one.attainment), "good" if one.attainment >= PROMISED else "bad"),
             words.seconds(one.ttft_p50_s), words.seconds(one.ttft_p99_s), words.seconds(one.ttft_slo_s),
             f"{one.cold_starts:,}", words.missed(one.missed))
            for one in answer.models
        ],
    )  # fmt: skip
    variants = page.table(
        ("box", "SLO met", "takes up to", "buys"),
        [
            (one.name, words.percent(one.answer.attainment), words.holds(one.limit), words.buys(plan, one))
            for one in plan.outlooks
        ],
    )
    return page.page(
        "llmhostd plan",
        [
            page.heading("What this box can promise", words.verdict(plan), about),
            page.section("figure", words.total(answer), [figure, page.paragraph(words.breaking(plan.as_it_is))]),
            page.section("more", "What more, or less, would change", [variants]),
            page.section("models", "Models", [models]),
        ],
    )
