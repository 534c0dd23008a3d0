"""What do instances of their own for prefill and decode cost? (SLINFER §IX-G, Table III.)"""

from llmhostd.evaluation.charts import Series, draw_bars, legend
from llmhostd.evaluation.drawing import new_figure
from llmhostd.evaluation.outcomes import Outcomes, Section, gpus, of, slo_percent, values
from llmhostd.evaluation.parts import COUNTS, RIVALS, Part, conversation, in_stages
from llmhostd.evaluation.published import APART
from llmhostd.simulator.experiment import Experiment

GROUPS = tuple(f"{n}\n{how}" for n in COUNTS for how in ("together", "apart"))


def apart(part: Part, outcomes: Outcomes) -> Section:
    """Table III: 7B, prefill and decode together and apart."""
    section = Section(part.name, part.title, part.source, _findings(outcomes))
    section.figure, axes = new_figure(1, 2, width=12.5, height=3.8)
    for place, (title, measure, field, most) in enumerate((
        ("SLO met, %", slo_percent, "slo_rate", 104), ("GPU nodes used", gpus, "gpus_used", None),
    )):  # fmt: skip
        scale = 100.0 if field == "slo_rate" else 1.0
        series = [
            Series(policy, values(outcomes, _points(policy), measure), paper=_told(policy, field, scale))
            for policy in RIVALS
        ]
        draw_bars(axes[0][place], GROUPS, series, most=most, written=most is not None)
        axes[0][place].set_title(title)
    legend(section.figure, RIVALS, paper=True)
    return section


def _findings(outcomes: Outcomes) -> list[str]:
    said = []
    for policy in RIVALS:
        losses = [
            f"{whole - split:+.1f} points at {n}"
            for n in COUNTS
            if (whole := of(outcomes, conversation(policy, "7b", n), slo_percent)) is not None
            and (split := of(outcomes, in_stages(policy, n), slo_percent)) is not None
        ]
        if losses:
            said.append(f"Together, {policy} keeps more promises than apart, by {', '.join(losses)} models.")
    return said


def _points(policy: str) -> list[Experiment]:
    return [each for n in COUNTS for each in (conversation(policy, "7b", n), in_stages(policy, n))]


def _told(policy: str, field: str, scale: float) -> list[float | None]:
    """What Table III says, in the order of GROUPS."""
    found = [APART.get((policy, n, how)) for n in COUNTS for how in (False, True)]
    figures = [getattr(one, field) if one else None for one in found]
    return [None if figure is None else scale * figure for figure in figures]
