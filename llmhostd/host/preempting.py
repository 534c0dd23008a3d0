"""May those who give way go on where they are until they have caught up elsewhere? (SLINFER §VIII-A, ServerlessLLM §5.)

An instance that takes a newcomer in the place of neighbours can have it as soon as they are gone. Where the newcomer
can wait for that and still have its first token in time, their streams move live; otherwise they leave at once.
"""

from llmhostd.domain.actions import HostAction
from llmhostd.host.fleet import Fleet
from llmhostd.host.migrating import Migrating
from llmhostd.host.offers import Offer
from llmhostd.host.placement import Placement
from llmhostd.host.request import Hope
from llmhostd.migration.cost import resume_cost
from llmhostd.migration.live_migration import MigrationPolicy


class Preempting:
    """Lets neighbours give way without a gap in their streams."""

    def __init__(self, fleet: Fleet, placement: Placement, migrating: Migrating, policy: MigrationPolicy) -> None:
        self._fleet = fleet
        self._placement = placement
        self._migrating = migrating
        self._policy = policy

    def hope(self, offer: Offer, now: float) -> Hope | None:
        """Foretell when a newcomer can take an offer whose moves are made live; None: it cannot wait for that."""
        streams = [one for one in offer.moves if self._migrating.may_begin(self._fleet.requests[one.request_id])]
        if not streams:
            return None
        takes_s = sum(self._takes_s(one.offer, now) for one in streams)
        spare_s = offer.request.deadline_s - offer.request.shape.arrived_s - offer.verdict.expected_ttft_s
        wait_s = spare_s * self._policy.newcomer_waits
        if takes_s > wait_s:
            return None
        moving = tuple(one.request_id for one in streams)
        because = f"{len(moving)} streams give way to it on {offer.instance.id}, in {takes_s:.2f} s of {wait_s:.2f} s"
        node_id = offer.instance.node_id
        return Hope(node_id, now + takes_s, now + wait_s, excused=False, because=because, moving=moving)

    def begin(self, offer: Offer, now: float) -> list[HostAction]:
        """Let everybody who gives way go: streams live, others at once."""
        actions: list[HostAction] = []
        for one in offer.moves:
            request, because = self._fleet.requests[one.request_id], f"{offer.instance.id} is to grow"
            go = self._migrating.begin if self._migrating.may_begin(request) else self._placement.move
            actions += go(request, one.offer, now, because)
        return actions

    def hurry(self, hope: Hope, now: float) -> list[HostAction]:
        """Let those go at once who are still on their way: the newcomer can wait no longer."""
        return [action for name in hope.moving for action in self._migrating.hurry(name, now, hope.because)]

    def _takes_s(self, offer: Offer, now: float) -> float:
        """Until a stream is gone: its destination loads, and computes its context in what others leave it."""
        load, request = offer.instance.load, offer.request
        resume_s = resume_cost(load, request.context_tokens).resume_s(request.context_tokens)
        return max(load.ready_at_s - now, 0.0) + load.first_run_s + resume_s * self._policy.slower_in_slack
