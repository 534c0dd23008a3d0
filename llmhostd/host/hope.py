"""May somebody who finds no place now expect one in time, and until when does he wait for it?

Only what will happen by itself counts: a worker that is being started, and memory that those who run will give back.
Whoever may not hope is told at once, with the estimate.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from llmhostd.compute.shadow_play import alone_s
from llmhostd.compute.workload import RequestLoad
from llmhostd.consolidation.bin_packing import NEARNESS
from llmhostd.domain.ids import NodeId
from llmhostd.host.budget import Budget
from llmhostd.host.families import computes, may_serve
from llmhostd.host.fleet import Fleet, ModelRecord, NodeRecord
from llmhostd.host.forecast import Forecast
from llmhostd.host.instance import Instance
from llmhostd.host.request import Hope, LiveRequest
from llmhostd.host.residency import Residency


@dataclass(frozen=True, slots=True)
class HopePolicy:
    """How long a person may be kept without a place."""

    most_restart_s: float = 10.0
    """Somebody who arrives while a worker is started waits for it if it is expected to be up within this long."""
    first_restart_s: float = 3.0
    """Expected time until a worker is up, from its death, or from the beginning of all, before one was seen to come
    back."""
    wait_for_memory: bool = True
    """Somebody who lacks only memory waits if enough of it is expected to come free in time for his first token. False:
    he is refused at once."""


class Hopes:
    """Foretells places; changes nothing."""

    def __init__(
        self, fleet: Fleet, budget: Budget, residency: Residency, forecast: Forecast, policy: HopePolicy
    ) -> None:
        self._fleet = fleet
        self._budget = budget
        self._residency = residency
        self._forecast = forecast
        self._policy = policy

    def of(self, model: ModelRecord, request: RequestLoad, now: float) -> Hope | None:
        """Find the soonest place that is to come, in time or not; None: none is."""
        hopes = [*self._restarts(model, request, now)]
        if self._policy.wait_for_memory:
            hopes += self._releases(model, request, now)
        return min(hopes, key=lambda hope: (hope.at_s > hope.until_s, hope.at_s), default=None)

    def still_waits(self, request: LiveRequest, now: float, node_id: NodeId | None) -> bool:
        """Whether it is too early to search again for somebody who waits, after something happened on a node.

        `node_id`: None when it may have been anywhere. A look at sums, so that many may wait.
        """
        hope = request.hope
        if hope is not None and any(name in self._fleet.migrations for name in hope.moving):
            return now < hope.until_s
        if hope is None or hope.moving or hope.excused or now > hope.at_s or now >= hope.until_s:
            return False
        if node_id not in (None, hope.node_id):
            return True
        node, model = self._fleet.nodes[hope.node_id], self._fleet.models[request.load.shape.model]
        return node.up and self._budget.shortage_bytes(self._instance(model, node, now), request.load) > 0

    def back_at_s(self, node: NodeRecord, now: float) -> float:
        """Foretell when a node that is down is up: again, or for the first time.

        One that is overdue is expected to take as long again as it is overdue already.
        """
        since_s = self._fleet.began_s if node.down_since_s is None else node.down_since_s
        usual_s = self._policy.first_restart_s if node.restart_s is None else node.restart_s
        due_s = since_s + usual_s
        return max(due_s, now + (now - due_s))

    def _restarts(self, model: ModelRecord, request: RequestLoad, now: float) -> Iterator[Hope]:
        """Nodes that are being started. The wait for one is excused, as a cold start is (SLINFER §IX-A)."""
        for node in self._fleet.nodes.values():
            if node.up or node.draining or not computes(node.spec, model.spec):
                continue
            at_s = self.back_at_s(node, now)
            if at_s - now > self._policy.most_restart_s:
                continue
            if self._budget.never_fits(self._fleet.draft(model, node, now), request):
                continue
            until_s = at_s + request.shape.slo.ttft_s
            because = f"{node.spec.id} is expected to be up in {at_s - now:.1f} s"
            yield Hope(node.spec.id, at_s, until_s, excused=True, because=because)

    def _releases(self, model: ModelRecord, request: RequestLoad, now: float) -> Iterator[Hope]:
        """Nodes that lack memory now, and will have it."""
        for node in self._fleet.nodes_free():
            if not computes(node.spec, model.spec):
                continue
            instance = self._instance(model, node, now)
            short_bytes = self._budget.shortage_bytes(instance, request)
            if short_bytes <= 0 or self._fleet.profile_of(instance) is None:
                continue
            if self._budget.never_fits(instance, request):
                continue
            at_s = self._forecast.fits_at_s(instance, request, short_bytes, now)
            if at_s is None:
                continue
            if instance.id not in self._fleet.instances:
                self._residency.expect(instance, now)
            # The load that comes after is excused like any; what others do until they are gone is not.
            until_s = request.shape.arrived_s + request.shape.slo.ttft_s - alone_s(instance.load, request)
            because = f"{short_bytes / 2**20:.0f} MiB that it lacks on {node.spec.id} come free in {at_s - now:.1f} s"
            yield Hope(node.spec.id, at_s, until_s, excused=False, because=because)

    def _instance(self, model: ModelRecord, node: NodeRecord, now: float) -> Instance:
        """Where on a node a request of a model would go; when it could start there is not foretold."""
        mine = (one for one in self._fleet.instances_of(model.spec.name) if one.node_id == node.spec.id)
        here = (one for one in mine if one.state in NEARNESS and may_serve(one.shape, model.spec) and not one.closed)
        return next(here, None) or self._fleet.draft(model, node, now)
