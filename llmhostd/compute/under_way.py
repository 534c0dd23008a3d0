"""What will a node have done when the iteration that it computes now is over?

A node says what an iteration did when it ends, not when it begins. Whoever arrives in between would be validated as if
the device were free, although it may be held by a prefill for a second. So the iteration is planned here as the node
planned it, by the same function over the same picture: from the end of the last one, with those who were there then.
"""

from dataclasses import replace

from llmhostd.compute.headroom import Agenda
from llmhostd.compute.iteration_draft import IterationPlan
from llmhostd.compute.iteration_plan import SchedulingPolicy, next_plan
from llmhostd.compute.workload import InstanceLoad, NodeLoad


def when_free(node: NodeLoad, now: float, scheduling: SchedulingPolicy, *, loading_slowdown: float = 1.0) -> NodeLoad:
    """Picture a node at the end of its running iteration; the node itself when it computes nothing.

    `busy_until_s` is then when that is, never before `now`. Nothing of the node changes.
    """
    begins_s = node.busy_until_s
    while begins_s < now:
        plan = next_plan(Agenda(_since(node, begins_s)), begins_s, scheduling)
        if plan is not None:
            loads = any(one.ready_at_s > begins_s for one in node.instances.values())
            ends_s = begins_s + plan.predicted_s * (loading_slowdown if loads else 1.0)
            return _after(node, plan, max(ends_s, now))
        begins_s = _next_chance_s(node, begins_s)
    return node


def _since(node: NodeLoad, at_s: float) -> NodeLoad:
    """Leave out who came later."""
    picture = NodeLoad(at_s)
    for key, one in node.instances.items():
        there = {name: request for name, request in one.requests.items() if request.joined_s <= at_s}
        picture.instances[key] = one if len(there) == len(one.requests) else replace(one, requests=there)
    return picture


def _next_chance_s(node: NodeLoad, at_s: float) -> float:
    """When somebody joins, or an instance is loaded, next; inf when never."""
    instances = node.instances.values()
    joins_s = [request.joined_s for one in instances for request in one.requests.values() if request.joined_s > at_s]
    loads_s = [one.ready_at_s for one in instances if one.ready_at_s > at_s]
    return min((*joins_s, *loads_s), default=float("inf"))


def _after(node: NodeLoad, plan: IterationPlan, ends_s: float) -> NodeLoad:
    """Let the rows of a plan be done."""
    one = node.instances[plan.instance_id]
    requests = dict(one.requests)
    for row in plan.rows:
        request = requests[row.request_id].further(row.tokens)
        requests[row.request_id] = request
        if row.sample:
            request.said(1, ends_s)
            if request.tokens_out >= request.shape.max_tokens:
                del requests[row.request_id]
    room = one.room.after(plan.adapters) if one.room else None
    done = InstanceLoad(one.id, one.estimator, one.ready_at_s, 0.0, requests, one.block_tokens, room)
    return NodeLoad(ends_s, {**node.instances, one.id: done})
