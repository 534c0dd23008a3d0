"""Which requests are on this node, and how does each of them leave?

By finishing, by being cancelled (`DropRequest`), back to the host (`ReturnRequest`), or because the engine failed it
twice (`FailRequest`): each exactly once. What is computing now leaves when its iteration ends.

A staged one is here ahead of its stream, which runs on another node (ServerlessLLM §5.3). It is a request like any
that draws no token; `SubmitRequest` is what brings the stream.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from llmhostd.compute.workload import NEVER_S, RequestLoad
from llmhostd.domain import node_events as events
from llmhostd.domain.commands import StageRequest, SubmitRequest
from llmhostd.domain.ids import InstanceId, RequestId
from llmhostd.domain.node_events import NodeAction
from llmhostd.domain.request import RequestShape
from llmhostd.node.device import Device
from llmhostd.node.instance import NodeInstance
from llmhostd.node.lifecycle import Lifecycle
from llmhostd.node.states import Phase

REMEMBERED_FAILURES = 1024
"""Requests given back after a failed iteration that are remembered at most."""

PAUSE = 0.25
"""The next token of a stream that has come here is due within this share of its time per output token."""

Way = events.DropRequest | events.ReturnRequest


@dataclass(slots=True)
class Requests:
    """All requests of a node."""

    instances: Mapping[InstanceId, NodeInstance]
    device: Device
    lifecycle: Lifecycle
    where: dict[RequestId, InstanceId] = field(default_factory=dict)
    """Every request, and its instance."""
    leaving: dict[RequestId, Way] = field(default_factory=dict)
    """Requests of the running iteration that were cancelled or recalled, and how they leave when it ends."""
    failed: dict[RequestId, None] = field(default_factory=dict)
    """Those that were given back because an iteration of theirs failed, the latest last."""

    def submit(self, command: SubmitRequest, now: float) -> list[NodeAction]:
        """Take a request, or give it back at once. One that was staged goes on from what is computed, and soon.

        Its stream pauses until its next token: that is due before those of all who can wait for longer.
        """
        load = self._request(command.request.id)
        if load is not None and load.staged and command.request.id not in self.leaving:
            load.staged = False
            *_, longest_gap_s = load.due()
            if longest_gap_s < NEVER_S:
                load.last_token_s = now + load.shape.slo.tpot_s * PAUSE - longest_gap_s
            return self._brought(load, command.request)
        return self._enter(command.instance_id, command.request, staged=False)

    def stage(self, command: StageRequest) -> list[NodeAction]:
        """Take in a round of what is to come here, or give it back at once."""
        if not command.known_tokens:
            return self._enter(command.instance_id, command.request, staged=True)
        load = self._request(command.request.id)
        if load is None or not load.staged or command.request.id in self.leaving:
            return []  # it was given back, which the host hears of
        return self._brought(load, command.request)

    def _enter(self, instance_id: InstanceId, request: RequestShape, *, staged: bool) -> list[NodeAction]:
        if request.id in self.leaving:
            because = "its predecessor still computes"
            return [events.ReturnRequest(request_id=request.id, because=because, staged=staged)]
        if request.id in self.where:
            return []
        one = self.instances.get(instance_id)
        if one is None or one.phase is Phase.UNLOADING or one.unload_because is not None:
            gone = "is not loaded here" if one is None else "is being unloaded"
            return [events.ReturnRequest(request_id=request.id, because=f"{instance_id} {gone}", staged=staged)]
        one.load.requests[request.id] = RequestLoad(
            request, request.given_tokens, request.tokens_out, deadlines=self.device.policy.deadlines, staged=staged
        )
        self.where[request.id] = one.id
        self.device.agenda.touch(one.id)
        if one.rest_because is None:
            return []
        one.rest_because = None
        return [events.CallOffRest(instance_id=one.id, because=f"{request.id} came before its rest began")]

    def _brought(self, load: RequestLoad, request: RequestShape) -> list[NodeAction]:
        """Know the tokens that its stream said meanwhile, elsewhere."""
        load.shape, load.tokens_out = request, request.tokens_out
        self.device.agenda.touch(self.where[request.id])
        return []

    def back(self, request_id: RequestId, because: str) -> events.ReturnRequest:
        """Make the action that gives a request back."""
        load = self._request(request_id)
        staged = load is not None and load.staged
        return events.ReturnRequest(request_id=request_id, because=because, staged=staged)

    def leave(self, way: Way) -> list[NodeAction]:
        """Let a request go, now or when the iteration that computes it ends."""
        if way.request_id not in self.where:
            return []
        running = self.device.running
        if running is not None and any(row.request_id == way.request_id for row in running.rows):
            self.leaving[way.request_id] = way
            return []
        self.forget(way.request_id)
        return [way]

    def left_meanwhile(self) -> list[NodeAction]:
        """Let go of those that were to leave when the iteration ended."""
        leaving = [way for way in self.leaving.values() if way.request_id in self.where]
        self.leaving.clear()
        for way in leaving:
            self.forget(way.request_id)
        return list(leaving)

    def all_leave(self, one: NodeInstance, because: str) -> list[NodeAction]:
        """Give back all requests of an instance that is lost to them."""
        back: list[NodeAction] = []
        for request_id in list(one.load.requests):
            way = self.leaving.pop(request_id, None)
            back.append(way or self.back(request_id, because))
            self.forget(request_id)
        return back

    def ended_with(self, failures: Iterable[tuple[RequestId, str]]) -> list[NodeAction]:
        """Let go of those that were to leave when the iteration ended, and of those that it failed, and why.

        These are tried again as their tokens, elsewhere or here; once, then they fail.
        """
        actions = self.left_meanwhile()
        for request_id, because in failures:
            if request_id not in self.where:
                continue
            back = self.back(request_id, because)
            self.forget(request_id)
            if request_id in self.failed and not back.staged:
                del self.failed[request_id]
                actions.append(events.FailRequest(request_id=request_id, because=because))
            else:
                if not back.staged:
                    self.failed[request_id] = None
                actions.append(back)
        while len(self.failed) > REMEMBERED_FAILURES:
            del self.failed[next(iter(self.failed))]
        return actions

    def matched(self, event: events.PrefixMatched) -> None:
        """Take note of context that need not be computed."""
        request = self._request(event.request_id)
        if request is not None:
            cached = min(event.cached_tokens, request.context_tokens - 1)
            request.computed_tokens = max(request.computed_tokens, cached)
            self.device.agenda.touch(self.where[event.request_id])

    def advance(self, row: events.RowDone, now: float) -> None:
        """Take in what an iteration did for a request."""
        request = self._request(row.request_id)
        if request is None:
            return
        request.computed_tokens += row.computed_tokens
        request.said(row.new_tokens, now)
        if row.finish is not None:
            one = self.instances[self.where[row.request_id]]
            self.device.pools.outputs_of(one).observe(request.tokens_out)
            self.failed.pop(row.request_id, None)
            self.forget(row.request_id)

    def forget(self, request_id: RequestId) -> None:
        """A request is not here any more; what it held is not needed."""
        one = self.instances[self.where.pop(request_id)]
        one.left(one.load.requests.pop(request_id))
        if one.idle:
            self.device.pools.memory.call_off(one)
        self.device.shrinkable[one.id] = None
        self.lifecycle.look_at(one)
        self.device.agenda.touch(one.id)

    def _request(self, request_id: RequestId) -> RequestLoad | None:
        instance_id = self.where.get(request_id)
        return None if instance_id is None else self.instances[instance_id].load.requests[request_id]
