"""What do outcomes say, one by one and compared? Arithmetic and its words; None where something was not computed."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llmhostd.simulator.assumptions import Assumptions
from llmhostd.simulator.experiment import Experiment
from llmhostd.simulator.outcome import Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Outcomes = Mapping[Experiment, Outcome]
Measure = Callable[[Outcome], float]

PROMISED = 0.99
"""From this SLO rate on, a point is served as well as it is asked to be."""
LONGEST_GAP_TPOTS = 8
"""`llmhostd` is held to a longest gap of so many TPOT SLOs, at the 99th percentile."""


@dataclass(slots=True)
class Section:
    """One part of the report."""

    name: str
    title: str
    source: str
    findings: list[str]
    figure: "Figure | None" = None
    tables: list[str] = field(default_factory=list)
    """HTML."""


def slo_percent(outcome: Outcome) -> float:
    """SLO-met requests of all, %."""
    return 100 * outcome.slo_rate


def gpus(outcome: Outcome) -> float:
    """GPU nodes in use, on average."""
    return outcome.nodes_used.gpu


def cpus(outcome: Outcome) -> float:
    """CPU nodes in use, on average."""
    return outcome.nodes_used.cpu


def gap_p99_s(outcome: Outcome) -> float:
    """The longest wait within a stream, 99th percentile."""
    return outcome.max_gap_s.p99


def of(outcomes: Outcomes, experiment: Experiment, measure: Measure) -> float | None:
    """A measure of an experiment; None if it was not computed."""
    found = outcomes.get(experiment)
    return None if found is None else measure(found)


def values(outcomes: Outcomes, experiments: Iterable[Experiment], measure: Measure) -> list[float | None]:
    """A measure of several."""
    return [of(outcomes, each, measure) for each in experiments]


def longest_gap_allowed_s(assumptions: Assumptions) -> float:
    """What `llmhostd` is held to."""
    return LONGEST_GAP_TPOTS * assumptions.tpot_s


@dataclass(slots=True)
class Duel:
    """One policy against another, at the same points."""

    points: int = 0
    """Where the other keeps less than `PROMISED`."""
    won: int = 0
    missed: int = 0
    """Requests that the other missed at those points."""
    won_back: int = 0
    """Of those, by how many this one missed fewer."""
    more_gpus: float = 0.0
    """The most that it used in excess of the other, at any of those points."""

    def meet(self, ours: Outcome, theirs: Outcome) -> None:
        """Compare at a point."""
        if theirs.slo_rate >= PROMISED:
            return
        self.points += 1
        self.won += ours.slo_met > theirs.slo_met
        self.missed += theirs.requests - theirs.slo_met
        self.won_back += ours.slo_met - theirs.slo_met
        self.more_gpus = max(self.more_gpus, gpus(ours) - gpus(theirs))

    def sentence(self, ours: str, theirs: str) -> str:
        """What came of it."""
        if not self.points:
            return f"{theirs} keeps {PROMISED:.0%} of its promises everywhere here: {ours} has nothing to win back."
        share = self.won_back / max(self.missed, 1)
        back = f"{share:.0%} of what {theirs} missed is won back" if share >= 0 else f"{-share:.0%} more is missed"
        more = f"with at most {self.more_gpus:.2f} GPUs more" if self.more_gpus > 0.005 else "with no more GPUs"
        return (
            f"Of {self.points} points at which {theirs} is under {PROMISED:.0%}, {ours} meets more at {self.won}, "
            f"{more}; in all, {back} ({self.won_back:+,} of {self.missed:,} requests)."
        )


def duel(outcomes: Outcomes, pairs: Iterable[tuple[Experiment, Experiment]]) -> Duel:
    """Let the first of each pair meet the second, where both were computed."""
    fought = Duel()
    for ours, theirs in pairs:
        if ours in outcomes and theirs in outcomes:
            fought.meet(outcomes[ours], outcomes[theirs])
    return fought


def gap_sentence(outcomes: Outcomes, experiments: Iterable[Experiment]) -> str:
    """Whether streams of these stall."""
    known = [(outcomes[each], each) for each in experiments if each in outcomes]
    if not known:
        return ""
    allowed_s = longest_gap_allowed_s(known[0][1].assumptions)
    held = sum(gap_p99_s(outcome) <= allowed_s for outcome, _ in known)
    worst = max(gap_p99_s(outcome) for outcome, _ in known)
    return (
        f"Between two tokens of one stream {known[0][0].policy} lets at most {allowed_s:g} s pass at the 99th "
        f"percentile at {held} of {len(known)} points; the worst is {worst:.1f} s."
    )
