"""Is the iteration foreseen that a node computes while somebody arrives?"""

from llmhostd.compute.iteration_plan import SchedulingPolicy
from llmhostd.compute.under_way import when_free
from llmhostd.compute.workload import InstanceLoad, NodeLoad, RequestLoad
from llmhostd.domain.model import Slo
from llmhostd.domain.request import RequestShape, Tier

POLICY = SchedulingPolicy()


class Steady:
    """Ten milliseconds a token."""

    def iteration_s(self, *, prefill, decode_batch, decode_context):
        return 0.01 * (decode_batch + sum(chunk for chunk, _ in prefill))


def request(name, *, prompt=100, out=0, joined=0.0, most=50):
    shape = RequestShape(
        id=name, model="m", prompt_tokens=prompt, max_tokens=most, tier=Tier.LATENCY_SENSITIVE,
        slo=Slo(ttft_s=9.0, tpot_s=0.5), arrived_s=joined,
    )  # fmt: skip
    computed = prompt + out - 1 if out else 0
    first_s = joined if out else None
    return RequestLoad(shape, computed, out, first_s, first_s, joined_s=joined)


def node(*requests, busy_until=0.0, ready_at=0.0):
    load = InstanceLoad("a", Steady(), ready_at, requests={one.shape.id: one for one in requests})
    return NodeLoad(busy_until, {"a": load})


def test_a_prefill_that_began_before_holds_the_device_until_it_is_over():
    there = node(request("old"))
    then = when_free(there, 0.3, POLICY)
    assert then.busy_until_s == 1.0
    assert (then.instances["a"].requests["old"].tokens_out, then.instances["a"].requests["old"].pending_tokens) == (
        1,
        1,
    )
    assert there.instances["a"].requests["old"].tokens_out == 0, "the node itself stays"


def test_who_came_after_it_began_is_not_in_it():
    then = when_free(node(request("old", prompt=50), request("new", joined=0.2)), 0.3, POLICY)
    assert then.busy_until_s == 0.5
    assert then.instances["a"].requests["new"].computed_tokens == 0


def test_an_idle_node_began_when_the_first_came():
    assert when_free(node(request("first", prompt=50, joined=2.0)), 2.1, POLICY).busy_until_s == 2.5
    assert when_free(node(request("first", prompt=50, joined=2.0), ready_at=2.05), 2.1, POLICY).busy_until_s == 2.55


def test_what_should_be_over_is_over_now():
    assert when_free(node(request("old", out=3)), 7.0, POLICY).busy_until_s == 7.0


def test_who_has_said_all_is_gone():
    assert when_free(node(request("old", out=49)), 0.005, POLICY).instances["a"].requests == {}


def test_an_idle_node_stays_as_it_is():
    for idle in (node(), node(request("now", joined=3.0)), node(request("old"), busy_until=3.0)):
        assert when_free(idle, 3.0, POLICY) is idle
