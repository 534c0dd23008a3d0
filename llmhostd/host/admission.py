"""Is a request served, made to wait, or refused at once?

Somebody who waits is admitted only with a place, memory and a passed shadow validation; once admitted, never refused
unless the model itself breaks. Whoever finds no place waits for one that is expected in time (`host.hope`), until it
comes, or hope or time runs out. Best effort is never refused for lateness, nor because no node is up.
"""

from dataclasses import replace

import msgspec

from llmhostd.compute.deadlines import DeadlinePolicy
from llmhostd.compute.workload import RequestLoad
from llmhostd.domain.actions import HostAction, Refusal
from llmhostd.domain.ids import NodeId
from llmhostd.domain.request import RequestShape
from llmhostd.host.families import computes
from llmhostd.host.fleet import Fleet, ModelRecord
from llmhostd.host.hope import Hopes
from llmhostd.host.offers import Offer
from llmhostd.host.openness import why_closed
from llmhostd.host.placement import Placement
from llmhostd.host.precedence import Precedence
from llmhostd.host.preempting import Preempting
from llmhostd.host.refusal import RefusalPolicy, refuse, refuse_for, starts_too_slowly, too_large
from llmhostd.host.request import Hope, LiveRequest
from llmhostd.host.routing import Answer, Routing


class Admission:
    """Answers every arrival in the same step: a place, a refusal, or a wait with an end."""

    def __init__(
        self,
        fleet: Fleet,
        routing: Routing,
        hopes: Hopes,
        placement: Placement,
        precedence: Precedence,
        preempting: Preempting,
        policy: RefusalPolicy,
        deadlines: DeadlinePolicy,
    ) -> None:
        self._fleet = fleet
        self._routing = routing
        self._hopes = hopes
        self._placement = placement
        self._precedence = precedence
        self._preempting = preempting
        self._policy = policy
        self._deadlines = deadlines

    def arrived(self, shape: RequestShape, now: float) -> list[HostAction]:
        """Take a new request in, or refuse it."""
        unserved = self._unserved(shape, now)
        if unserved:
            return unserved
        model = self._fleet.models[shape.model]
        if model.spec.adapter is not None:
            shape = msgspec.structs.replace(shape, adapter=model.spec.adapter.identity)
        request = LiveRequest(RequestLoad(shape, shape.given_tokens, shape.tokens_out, deadlines=self._deadlines))
        if self._routing.never_fits(model, request.load, now):
            for_good = self._routing.never_fits(model, request.load, now, at_most=True)
            return [too_large(shape, self._policy, for_good=for_good)]
        if not request.load.latency_sensitive:
            self._fleet.requests[shape.id] = request
            self._fleet.waiting.add(request)
            return []
        self._precedence.asked(self._fleet.models[model.spec.served_by], shape)
        return self._answer(request, now)

    def look_again(self, now: float, node_id: NodeId | None) -> list[HostAction]:
        """Look at newcomers who wait, in order of arrival: a place came, or there is none to hope for any more.

        `node_id`: where something happened; None: anywhere.
        """
        return [
            action
            for request in self._fleet.waiting.newcomers
            if not self._hopes.still_waits(request, now, node_id)
            for action in self._answer(request, now)
        ]

    def _answer(self, request: LiveRequest, now: float) -> list[HostAction]:
        """Place a newcomer, let it wait, or refuse it."""
        shape, before = request.load.shape, request.hope
        model = self._fleet.models[shape.model]
        excused_s = now - shape.arrived_s if before and before.excused else 0.0
        actions = self._preempting.hurry(before, now) if before else []
        answer = self._in_turn(
            self._routing.ask(model, request.load, now, self._fleet.nodes_free(), excused_s), model, now
        )
        self._fleet.waiting.discard(request)
        self._fleet.requests[shape.id] = request
        if answer.accepted:
            if slow := starts_too_slowly(answer.accepted, shape, now, self._policy):
                del self._fleet.requests[shape.id]
                return [*actions, *self._placement.load_ahead(answer.accepted.instance, now, slow.because), slow]
            return actions + self._take(request, answer.accepted, now)
        self._fleet.close_outdated(model.spec)
        hope = self._hopes.of(model, request.load, now)
        until_s = hope.until_s if hope and before is None else before.until_s if before else now
        if hope and now < until_s and (hope.excused or hope.at_s <= until_s):
            request.hope = replace(hope, until_s=until_s)
            self._fleet.waiting.add(request)
            return actions
        del self._fleet.requests[shape.id]
        return [*actions, self._refusal(answer, hope, shape, now)]

    def _take(self, request: LiveRequest, offer: Offer, now: float) -> list[HostAction]:
        """Let a newcomer have a place, or wait for those who give way to it, if it can."""
        hurried = request.hope is not None and bool(request.hope.moving)
        request.hope = None if hurried else self._preempting.hope(offer, now)
        if request.hope is None:
            return self._placement.place(request, offer, now)
        self._fleet.waiting.add(request)
        return self._preempting.begin(offer, now)

    def _in_turn(self, answer: Answer, model: ModelRecord, now: float) -> Answer:
        """Let a model that is to be loaded wait for another that comes first."""
        name, offer = model.spec.served_by, answer.accepted
        if offer is None:
            self._precedence.lacked(name, answer.short_on, now)
            return answer
        where = offer.instance.node_id
        first = None if offer.instance.id in self._fleet.instances else self._precedence.before(name, where, now)
        if first is None:
            self._precedence.served(name)
            return answer
        self._precedence.lacked(name, (*answer.short_on, where), now)
        return replace(answer, accepted=None, yields_to=first)

    def _refusal(self, answer: Answer, hope: Hope | None, shape: RequestShape, now: float) -> HostAction:
        """Say why there is no place, and when there may be one."""
        model = self._fleet.models[shape.model].spec
        able = [node for node in self._fleet.nodes.values() if computes(node.spec, model)]
        why = why_closed(able)
        if not why:
            return refuse_for(answer, hope, shape, now, self._policy)
        if len(able) < len(self._fleet.nodes):
            why += ", of those that compute adapters"
        back_s = [self._hopes.back_at_s(node, now) - now for node in able if not node.draining]
        retry_s = self._policy.bounded_s(min(back_s, default=self._policy.drained_retry_s))
        return refuse(shape, Refusal.UNAVAILABLE, why, retry_s)

    def _unserved(self, shape: RequestShape, now: float) -> list[HostAction]:
        """Refuse what no search for an instance could help."""
        model = self._fleet.models.get(shape.model)
        base = self._fleet.models.get(model.spec.served_by) if model else None
        if model is None or model.removed or base is None or base.removed:
            return [refuse(shape, Refusal.MODEL_BROKEN, f"no model {shape.model} is known", 0.0)]
        if why := base.unloadable(now):
            retry_s = 0.0 if base.quarantined else base.broken_until_s - now
            return [refuse(shape, Refusal.MODEL_BROKEN, why, retry_s)]
        return []
