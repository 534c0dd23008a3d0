"""What is known of the daemon, and is anything wrong with it? No I/O, no widgets: messages in, facts out."""

from collections import deque
from dataclasses import dataclass, field, replace
from enum import IntEnum
from heapq import merge

from llmhostd.domain.ids import NodeId
from llmhostd.domain.model import ModelState
from llmhostd.domain.request import Tier
from llmhostd.domain.snapshot import Decision, HostSnapshot, ModelSnapshot, RequestSnapshot
from llmhostd_tui.client import Lost, Snapshot
from llmhostd_tui.memory import MemoryHistory

RATE_WINDOW_S = 10.0
HISTORY = 120
"""Samples of tokens per second that are kept per node, for the sparkline."""
DECISIONS = 2000
ITERATIONS = 500
"""What is kept of each, separately: iterations are many, and would push out what is rare."""
ITERATION = "IterationReported"


class Severity(IntEnum):
    """How bad is it?"""

    SLOW = 1
    DEGRADED = 2
    DOWN = 3


@dataclass(frozen=True, slots=True)
class Trouble:
    """One line of the banner."""

    severity: Severity
    text: str


@dataclass(slots=True)
class Picture:
    """Everything that the screens draw."""

    address: str
    snapshot: Snapshot | None = None
    lost: Lost | None = None
    attempts: int = 0
    """Failed ones since the last answer."""
    totals: deque[tuple[float, HostSnapshot]] = field(default_factory=deque)
    tokens_per_s: dict[NodeId, deque[float]] = field(default_factory=dict)
    memory: MemoryHistory = field(default_factory=MemoryHistory)
    decisions: deque[Decision] = field(default_factory=lambda: deque(maxlen=DECISIONS))
    """Newest first; without iterations."""
    iterations: deque[Decision] = field(default_factory=lambda: deque(maxlen=ITERATIONS))
    """Newest first; a sample of what nodes ran."""

    def hear_snapshot(self, snapshot: Snapshot) -> None:
        """The daemon answered."""
        restarted = self.snapshot is not None and snapshot.host.uptime_s < self.snapshot.host.uptime_s
        if restarted:
            self.totals.clear()
        self.snapshot, self.lost, self.attempts = snapshot, None, 0
        self.totals.append((snapshot.taken_s, snapshot.host))
        while self.totals[-1][0] - self.totals[0][0] > RATE_WINDOW_S:
            self.totals.popleft()
        for node in snapshot.nodes:
            self.tokens_per_s.setdefault(node.id, deque(maxlen=HISTORY)).append(node.tokens_per_s)
        self.memory.hear(snapshot.taken_s, snapshot.nodes)

    def hear_lost(self, lost: Lost) -> None:
        """The daemon did not answer; what was known stays, and is old."""
        self.lost = lost
        self.attempts += 1

    def hear_decision(self, decision: Decision) -> None:
        """A mind decided something."""
        (self.iterations if decision.kind == ITERATION else self.decisions).appendleft(decision)

    def all_decisions(self) -> list[Decision]:
        """Iterations too; newest first."""
        return list(merge(self.decisions, self.iterations, key=lambda one: one.at_unix_s, reverse=True))

    def running(self, node_id: NodeId) -> Decision | None:
        """What a node was last seen to run."""
        return next((one for one in self.iterations if one.node_id == node_id), None)

    def frozen(self) -> "Picture":
        """A copy that stays as it is."""
        histories = {node: deque(values, maxlen=HISTORY) for node, values in self.tokens_per_s.items()}
        return replace(
            self,
            totals=deque(self.totals),
            tokens_per_s=histories,
            memory=self.memory.copy(),
            decisions=deque(self.decisions, maxlen=DECISIONS),
            iterations=deque(self.iterations, maxlen=ITERATIONS),
        )

    def requests_per_s(self) -> float | None:
        """What arrived over the last seconds; None until two snapshots tell."""
        if len(self.totals) < 2:
            return None
        (first_s, first), (last_s, last) = self.totals[0], self.totals[-1]
        return (last.requests - first.requests) / (last_s - first_s)

    def output_tokens_per_s(self) -> float:
        """What all nodes put out in the last second."""
        return sum(node.tokens_per_s for node in self.snapshot.nodes) if self.snapshot else 0.0

    def slo_share(self) -> float | None:
        """Share 0-1 of finished latency-sensitive requests that met their SLO since the daemon started."""
        if self.snapshot is None:
            return None
        host = self.snapshot.host
        judged = host.slo_met + host.slo_missed
        return host.slo_met / judged if judged else None

    def model(self, name: str) -> ModelSnapshot | None:
        """The model of that name, if the daemon has one."""
        models = self.snapshot.models if self.snapshot else ()
        return next((model for model in models if model.name == name), None)

    def requests(self) -> tuple[RequestSnapshot, ...]:
        """Live ones: those that somebody waits for by headroom, least first, then best effort in the same order."""
        if self.snapshot is None:
            return ()
        return tuple(sorted(self.snapshot.requests, key=lambda one: (one.tier is Tier.BEST_EFFORT, one.headroom_s)))

    def troubles(self) -> list[Trouble]:
        """What is degraded, worst first."""
        found = [] if self.lost is None else [Trouble(Severity.DOWN, f"{self.lost.because}; trying again")]
        if self.snapshot is not None:
            found += _troubles_of(self.snapshot)
        return sorted(found, key=lambda trouble: -trouble.severity)


def _troubles_of(snapshot: Snapshot) -> list[Trouble]:
    found = [
        Trouble(
            Severity.DOWN,
            f"node {node.id} is down; its requests wait or continue elsewhere (restarts: {node.restarts})",
        )
        if node.restarts
        else Trouble(Severity.SLOW, f"node {node.id} starts" + ("" if node.draining else "; whoever needs it waits"))
        for node in snapshot.nodes
        if not node.up
    ]
    found += [
        Trouble(Severity.DEGRADED, f"node {node.id} drains: nothing new goes there (llmhostd drain {node.id} --end)")
        for node in snapshot.nodes
        if node.draining
    ]
    found += [
        Trouble(Severity.DEGRADED, f"model {model.name} is quarantined: {model.because}")
        for model in snapshot.models
        if model.state is ModelState.QUARANTINED
    ]
    found += [
        Trouble(Severity.DEGRADED, f"model {model.name} cannot be loaded: {model.because}")
        for model in snapshot.models
        if model.because and model.state is not ModelState.QUARANTINED
    ]
    found += [Trouble(Severity.DEGRADED, sentence) for sentence in snapshot.host.not_stored]
    if snapshot.host.draining:
        found.append(Trouble(Severity.DEGRADED, "draining: running requests end, new ones are refused"))
    found += [Trouble(Severity.SLOW, f"left out: {device}") for device in snapshot.host.left_out]
    caveats: dict[str, list[NodeId]] = {}
    for node in snapshot.nodes:
        for caveat in node.caveats if node.up else ():
            caveats.setdefault(caveat, []).append(node.id)
    return found + [Trouble(Severity.SLOW, f"{', '.join(nodes)}: {caveat}") for caveat, nodes in caveats.items()]
