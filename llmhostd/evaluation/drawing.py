"""How do figures look? One style for all of them, and the only import of matplotlib."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmhostd.domain.errors import OperatorError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, PALE, GRID = "#22303c", "#7b8794", "#e4e8ec"
COLOURS = ("#0f8b6d", "#3b6fb6", "#d9773f", "#c9a227", "#98a4ae", "#8e5ea2", "#5aa9c7", "#b5495b")
"""For up to eight things in one figure; told apart by lightness too, for whoever sees colours otherwise."""
GOOD, FAIR, BAD = "#0f8b6d", "#c9a227", "#b5495b"
DOTS_PER_INCH = 150

_STYLE: Any = {
    "font.family": "DejaVu Sans", "font.size": 9, "text.color": INK,
    "axes.edgecolor": GRID, "axes.labelcolor": PALE, "axes.labelsize": 8.5, "axes.titlecolor": INK,
    "axes.titlesize": 10, "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.titlepad": 8,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "xtick.color": PALE, "ytick.color": PALE, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "xtick.major.size": 0, "ytick.major.size": 0, "xtick.minor.size": 0, "ytick.minor.size": 0,
    "xtick.labelsize": 8.5, "ytick.labelsize": 8.5,
    "grid.color": GRID, "grid.linewidth": 0.8, "legend.frameon": False, "legend.fontsize": 8.5,
    "lines.linewidth": 1.8, "lines.markersize": 4.5, "svg.fonttype": "path", "svg.hashsalt": "llmhostd",
    "figure.facecolor": "white", "axes.facecolor": "white",
}  # fmt: skip


def style() -> AbstractContextManager[None]:
    """Everything that is drawn within has our style. Raises OperatorError naming the extra that is missing."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise OperatorError(
            "plots are drawn by matplotlib, which is not installed: pip install 'llmhostd[plots]'"
        ) from error
    return mpl.rc_context(_STYLE)


def new_figure(
    rows: int, columns: int, *, width: float, height: float, widths: Sequence[float] | None = None
) -> tuple["Figure", list[list["Axes"]]]:
    """A figure of small multiples, in inches; within `style()`. `widths`: of the columns, relative."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    ratios = {"width_ratios": list(widths)} if widths else None
    axes = figure.subplots(rows, columns, squeeze=False, gridspec_kw=ratios)
    return figure, [list(row) for row in axes]


def write_png(figure: "Figure", path: Path) -> None:
    """Write an image. Raises OperatorError naming the file."""
    image = BytesIO()
    figure.savefig(image, format="png", dpi=DOTS_PER_INCH)
    write(path, image.getvalue())


def as_svg(figure: "Figure") -> str:
    """The figure as an element of an HTML page; the same figure gives the same text."""
    text = StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def write(path: Path, content: bytes) -> None:
    """Write a file whole. Raises OperatorError naming it."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise OperatorError(f"{path}: cannot be written: {error.strerror}") from error


def quality(attainment: float) -> str:
    """The colour of a share of promises kept."""
    return GOOD if attainment >= 0.99 else FAIR if attainment >= 0.9 else BAD
