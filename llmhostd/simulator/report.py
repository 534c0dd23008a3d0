"""How well did a simulated box keep its promises?"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from llmhostd.bench.summary import Distribution
from llmhostd.domain.actions import Refusal
from llmhostd.domain.ids import InstanceId, NodeId
from llmhostd.domain.request import FinishReason, Tier
from llmhostd.domain.words import Word
from llmhostd.simulator.workload import SimulatedRequest

EXACT_S = 1e-9
"""Sums of times may differ by as much and be the same."""


@dataclass(slots=True)
class Observation:
    """What one caller saw."""

    asked: SimulatedRequest
    grace_s: float = 0.0
    """Granted for a cold start."""
    token_s: list[float] = field(default_factory=list)
    """When each output token came."""
    finish: FinishReason | None = None
    refused: Refusal | None = None
    because: str = ""
    """Why it was refused."""
    left: bool = False
    """The caller went away."""
    submissions: int = 0
    told: tuple[NodeId, InstanceId] | None = None
    """Who was last told to run it: as in the daemon, only their tokens count."""

    @property
    def answered(self) -> bool:
        """Whether it came to an end, whichever: nobody waits for ever."""
        return self.finish is not None or self.refused is not None or self.left

    @property
    def waited_for(self) -> bool:
        """Whether somebody had an SLO."""
        return self.asked.shape.tier is Tier.LATENCY_SENSITIVE

    @property
    def ttft_s(self) -> float:
        """From arrival; of an answer with at least one token."""
        return self.token_s[0] - self.asked.shape.arrived_s

    @property
    def tpot_s(self) -> float:
        """Mean over the tokens after the first; 0 for one token."""
        return (self.token_s[-1] - self.token_s[0]) / max(len(self.token_s) - 1, 1)

    @property
    def met(self) -> bool:
        """Whether both promises were kept: TTFT, with the cold start's grace, and the mean TPOT (SLINFER §IX-A)."""
        slo = self.asked.shape.slo
        return self._began_in_time and self.tpot_s <= slo.tpot_s

    @property
    def met_by_eq1(self) -> bool:
        """The same, if a first token that came early may be paid back by slow later ones (SLINFER eq. 1).

        So a policy that schedules by eq. 1 understands its promise; a mean over the tokens after the first does not
        forgive that.
        """
        shape, after = self.asked.shape, len(self.token_s) - 1
        due_s = shape.arrived_s + shape.slo.ttft_s + self.grace_s + shape.slo.tpot_s * after
        return self._began_in_time and self.token_s[-1] <= due_s + EXACT_S

    @property
    def _began_in_time(self) -> bool:
        return self.finish is not None and self.ttft_s <= self.asked.shape.slo.ttft_s + self.grace_s


class Effort(Word):
    """What it took."""

    iterations: int
    busy: float
    """Share of the time that nodes computed, 0-1."""
    loads: int
    rests: int
    unloads: int
    worker_deaths: int
    moved: int
    """Submissions of requests that had lost their place."""


class Report(Word):
    """One simulation. Attainment is of requests with an SLO whose callers stayed; refused ones count as missed."""

    seed: int
    requests: int
    finished: int
    refused: dict[str, int]
    left: int
    """Callers who went away."""
    lost: int
    """Requests that nobody ever answered: a fault of ours."""
    met: int
    attainment: float
    attainment_of_served: float
    goodput_requests_per_s: float
    tokens_per_s: float
    best_effort_tokens_per_s: float
    duration_s: float
    """Simulated, from the first arrival to the last token."""
    ttft: Distribution | None
    tpot: Distribution | None
    effort: Effort
    digest: str
    """Of every decision and its time: equal for equal runs."""


def report_on(observations: Sequence[Observation], effort: Effort, *, seed: int, digest: str) -> Report:
    """Count and measure."""
    finished = [each for each in observations if each.finish]
    served = [each for each in finished if each.waited_for]
    stayed = [each for each in observations if each.waited_for and not each.left]
    met = sum(each.met for each in served)
    began_s = min((each.asked.shape.arrived_s for each in observations), default=0.0)
    ended_s = max((each.token_s[-1] for each in observations if each.token_s), default=began_s)
    duration_s = max(ended_s - began_s, 1e-9)
    tokens = Counter(dict.fromkeys(Tier, 0))
    for each in observations:
        tokens[each.asked.shape.tier] += len(each.token_s)
    return Report(
        seed=seed,
        requests=len(observations),
        finished=len(finished),
        refused={str(why): n for why in Refusal if (n := sum(each.refused is why for each in observations))},
        left=sum(each.left for each in observations),
        lost=sum(not each.answered for each in observations),
        met=met,
        attainment=met / max(len(stayed), 1),
        attainment_of_served=met / max(len(served), 1),
        goodput_requests_per_s=met / duration_s,
        tokens_per_s=tokens.total() / duration_s,
        best_effort_tokens_per_s=tokens[Tier.BEST_EFFORT] / duration_s,
        duration_s=duration_s,
        ttft=_distribution([each.ttft_s for each in served]),
        tpot=_distribution([each.tpot_s for each in served if len(each.token_s) > 1]),
        effort=effort,
        digest=digest,
    )


def as_text(report: Report) -> str:
    """Draw it for a terminal."""
    refused = ", ".join(f"{n} {why}" for why, n in report.refused.items()) or "none"
    rows = [
        ("requests", f"{report.requests} in {report.duration_s:.0f} s; {report.finished} finished"),
        ("refused", refused),
        ("lost", f"{report.lost}" + (f"; {report.left} callers left" if report.left else "")),
        ("SLO met", f"{report.attainment:.2%} of all, {report.attainment_of_served:.2%} of those served"),
        ("goodput", f"{report.goodput_requests_per_s:.2f} requests/s, {report.tokens_per_s:.0f} tokens/s"),
        ("best effort", f"{report.best_effort_tokens_per_s:.0f} tokens/s"),
        ("TTFT", _percentiles(report.ttft)),
        ("TPOT", _percentiles(report.tpot)),
        ("effort", _effort(report.effort)),
        ("digest", f"{report.digest} (seed {report.seed})"),
    ]
    return "\n".join(f"{name:<12} {value}" for name, value in rows)


def _effort(effort: Effort) -> str:
    parts = [
        f"{effort.iterations} iterations, {effort.busy:.0%} busy",
        f"{effort.loads} loads, {effort.rests} rests, {effort.unloads} unloads",
    ]
    if effort.worker_deaths or effort.moved:
        parts.append(f"{effort.worker_deaths} worker deaths, {effort.moved} moves")
    return "; ".join(parts)


def _percentiles(of: Distribution | None) -> str:
    if of is None:
        return "-"
    return "  ".join(
        f"{name} {value * 1000:.0f} ms" for name, value in (("p50", of.p50), ("p90", of.p90), ("p99", of.p99))
    )


def _distribution(values: Sequence[float]) -> Distribution | None:
    if not values:
        return None
    p50, p90, p95, p99 = (float(value) for value in np.percentile(values, (50, 90, 95, 99)))
    return Distribution(
        count=len(values), mean=float(np.mean(values)), p50=p50, p90=p90, p95=p95, p99=p99, max=float(max(values))
    )
