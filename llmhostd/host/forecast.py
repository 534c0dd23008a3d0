"""When will a node have the memory for a newcomer, if those who run there end as expected?

Like shadow validation, but over whole answers, so it is not played: an answer goes on for as long as answers of its
model do on average, one token per turn of everybody on the node, all a little slower than predicted.
"""

from collections.abc import Iterator

from llmhostd.compute.shadow_validation import ShadowPolicy
from llmhostd.compute.workload import InstanceLoad, RequestLoad
from llmhostd.domain.ids import InstanceId, RequestId
from llmhostd.domain.model import ModelState
from llmhostd.host.budget import Budget
from llmhostd.host.fleet import Fleet, NodeRecord
from llmhostd.host.instance import Instance


class Forecast:
    """Foretells memory; changes nothing."""

    def __init__(self, fleet: Fleet, budget: Budget, shadow: ShadowPolicy) -> None:
        self._fleet = fleet
        self._budget = budget
        self._pessimism = shadow.pessimism

    def fits_at_s(self, instance: Instance, newcomer: RequestLoad, short_bytes: int, now: float) -> float | None:
        """Say when an instance, or one that would be new, has the memory for a newcomer; None: not by itself.

        `short_bytes`: what its node lacks for that now (`Budget.shortage_bytes`). Others give way as soon as nobody is
        served there; its own pool has room again as its requests end.
        """
        node = self._fleet.node_of(instance)
        own_bytes = sum(self._budget.least_bytes(instance, (newcomer,)))
        left = {one.id: one.batch for one in self._fleet.instances_on(node)}
        ended: dict[RequestId, None] = {}
        for at_s, instance_id, request_id in sorted(self._ends(node, now)):
            left[instance_id] -= 1
            if instance_id == instance.id:
                ended[request_id] = None
                needs_bytes = sum(self._budget.least_bytes(instance, (newcomer,), ended))
                short_bytes += needs_bytes - own_bytes
                own_bytes = needs_bytes
            elif not left[instance_id]:
                short_bytes -= self._yields_bytes(self._fleet.instances[instance_id])
            if short_bytes <= 0:
                return at_s
        return None

    def _yields_bytes(self, instance: Instance) -> int:
        """What comes free beyond its spare KV, which counts as free already, once nobody is served there."""
        coming = instance.state in (ModelState.LOADING, ModelState.WARM, ModelState.RESIDENT)
        if not coming or self._fleet.profile_of(instance) is None:
            return 0
        promised_bytes = self._fleet.node_of(instance).promised.of(instance.id)
        return promised_bytes - self._budget.kv_spare_bytes(instance)

    def _ends(self, node: NodeRecord, now: float) -> Iterator[tuple[float, InstanceId, RequestId]]:
        """When each request of a node that somebody waits for will have its last token."""
        served = [one for one in self._fleet.instances_on(node) if one.batch > len(one.arriving)]
        turn_s = sum(self._decode_s(one.load) for one in served)
        prefill_s = sum(self._prefill_s(one.load) for one in served)
        for one in served:
            mean_tokens = self._fleet.models[one.model].outputs.mean_tokens
            begins_s = max(now, node.load.busy_until_s, one.load.ready_at_s) + prefill_s
            for request_id, load in one.load.requests.items():
                if load.latency_sensitive:
                    yield begins_s + _tokens_left(load, mean_tokens) * turn_s, one.id, request_id

    def _decode_s(self, load: InstanceLoad) -> float:
        """One token for everybody on an instance."""
        people = [one for one in load.requests.values() if one.latency_sensitive]
        context_tokens = sum(one.context_tokens for one in people)
        return load.round_s(len(people), context_tokens, load.adapters_of(people)) * self._pessimism

    def _prefill_s(self, load: InstanceLoad) -> float:
        """What is left to compute of the prompts on an instance."""
        parts = [
            (one.pending_tokens, one.computed_tokens)
            for one in load.requests.values()
            if one.latency_sensitive and not one.decoding
        ]
        seconds = (load.estimator.iteration_s(prefill=(part,), decode_batch=0, decode_context=0) for part in parts)
        return sum(seconds) * self._pessimism


def _tokens_left(load: RequestLoad, mean_tokens: float) -> float:
    """How much it will still say: up to the mean, and who has outgrown that as much again."""
    likely = mean_tokens - load.tokens_out if load.tokens_out < mean_tokens else mean_tokens
    return max(min(likely, load.shape.max_tokens - load.tokens_out), 1.0)
