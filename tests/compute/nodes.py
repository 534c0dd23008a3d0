"""Small nodes to plan on: an estimator whose sums can be done in the head, and builders."""

from llmhostd.compute.workload import InstanceLoad, NodeLoad, RequestLoad
from llmhostd.domain.ids import InstanceId, ModelName, RequestId
from llmhostd.domain.model import Slo
from llmhostd.domain.request import RequestShape, Tier


class LinearEstimator:
    """`step_s` to read the weights, `token_s` per token, `past_s` per thousand (token, past token) pairs."""

    def __init__(self, step_s=0.010, token_s=0.0002, past_s=0.000002):
        self.step_s, self.token_s, self.past_s = step_s, token_s, past_s

    def iteration_s(self, *, prefill, decode_batch, decode_context):
        if not prefill and not decode_batch:
            return 0.0
        tokens = decode_batch + sum(chunk for chunk, _ in prefill)
        pairs = decode_batch * decode_context + sum(chunk * past for chunk, past in prefill)
        return self.step_s + tokens * self.token_s + pairs * self.past_s / 1000


def request(
    name, prompt=100, *, max_tokens=30, out=0, computed=None, arrived=0.0, ttft=2.0, tpot=0.2, best_effort=False,
    adapter="",
):  # fmt: skip
    shape = RequestShape(
        id=RequestId(name), model=ModelName("m"), prompt_tokens=prompt, max_tokens=max_tokens,
        tier=Tier.BEST_EFFORT if best_effort else Tier.LATENCY_SENSITIVE, slo=Slo(ttft_s=ttft, tpot_s=tpot),
        arrived_s=arrived, adapter=adapter,
    )  # fmt: skip
    if computed is None:
        computed = prompt + out - 1 if out else 0
    return RequestLoad(shape, computed, out)


def instance(name, *requests, estimator=None, ready=0.0, first_run=0.0, room=None):
    held = {one.shape.id: one for one in requests}
    return InstanceLoad(InstanceId(name), estimator or LinearEstimator(), ready, first_run, held, room=room)


def node(*instances, busy_until=0.0):
    return NodeLoad(busy_until, {one.id: one for one in instances})
