"""May somebody who finds no place now expect one in time, and until when does he wait for it?

Only what will happen by itself counts: a worker that is being started again. Whoever may not hope is told at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from llmhostd.compute.workload import RequestLoad
from llmhostd.host.budget import Budget
from llmhostd.host.fleet import Fleet, ModelRecord, NodeRecord
from llmhostd.host.request import Hope
from llmhostd.host.residency import Residency


@dataclass(frozen=True, slots=True)
class HopePolicy:
    """How long a person may be kept without a place."""

    most_restart_s: float = 10.0
    """Somebody who arrives while a worker is started again waits for it if it is expected back within this long."""
    first_restart_s: float = 3.0
    """Expected time from a worker's death until it is up again, before one was seen to come back."""


class Hopes:
    """Foretells places; changes nothing."""

    def __init__(self, fleet: Fleet, budget: Budget, residency: Residency, policy: HopePolicy) -> None:
        self._fleet = fleet
        self._budget = budget
        self._residency = residency
        self._policy = policy

    def of(self, model: ModelRecord, request: RequestLoad, now: float) -> Hope | None:
        """Find the soonest place that a newcomer may wait for."""
        return min(self._restarts(model, request, now), key=lambda hope: hope.at_s, default=None)

    def back_at_s(self, node: NodeRecord, now: float) -> float | None:
        """Foretell when a node that is down is up again; None for one that was never up.

        One that is overdue is expected to take as long again as it is overdue already.
        """
        if node.down_since_s is None:
            return None
        usual_s = self._policy.first_restart_s if node.restart_s is None else node.restart_s
        due_s = node.down_since_s + usual_s
        return max(due_s, now + (now - due_s))

    def _restarts(self, model: ModelRecord, request: RequestLoad, now: float) -> Iterator[Hope]:
        """Nodes that are being started again. The wait for one is excused, as a cold start is (SLINFER §IX-A)."""
        for node in self._fleet.nodes.values():
            at_s = None if node.up or node.draining else self.back_at_s(node, now)
            if at_s is None or at_s - now > self._policy.most_restart_s:
                continue
            if self._budget.never_fits(self._residency.draft(model, node, now), request):
                continue
            until_s = at_s + request.shape.slo.ttft_s
            because = f"{node.spec.id} is expected back in {at_s - now:.1f} s"
            yield Hope(at_s=at_s, until_s=until_s, excused=True, because=because)
