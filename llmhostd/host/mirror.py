"""What did a node do, as far as its host must know to plan?"""

from llmhostd.compute.adapter_turns import distinct
from llmhostd.domain.reports import InstanceReported, IterationReported
from llmhostd.host.fleet import Fleet, NodeRecord
from llmhostd.host.instance import Instance
from llmhostd.host.request import LiveRequest

RECENT_S = 1.0
"""How far back a node's load is looked at."""


def advance(fleet: Fleet, event: IterationReported) -> list[LiveRequest]:
    """Follow one iteration; returns the requests that it finished.

    A request that was told to leave while it computed still gets this token, and moves with it, unless somebody else
    was told to run it already: then the row is late news, and the token will come from there.
    """
    node, instance = fleet.nodes[event.node_id], fleet.instances.get(event.instance_id)
    ended_s = event.started_s + event.duration_s
    node.load.busy_until_s = ended_s
    node.recent.append((ended_s, event.duration_s, sum(len(row.tokens) for row in event.rows)))
    _forget_older(node, ended_s)
    if instance is None:
        return []
    if event.rows:  # what packs weights or measures is for nobody
        instance.load.ran(settled=event.settled, predicted_s=event.predicted_s, actual_s=event.duration_s)
        instance.last_used_s = max(instance.last_used_s, ended_s)
    _follow_slots(fleet, instance, event)
    _follow_staged(fleet, instance, event)
    finished: list[LiveRequest] = []
    here = (event.node_id, instance.id)
    for row in event.rows:
        if row.finish is not None:
            fleet.left(event.node_id, row.request_id)
        request = fleet.requests.get(row.request_id)
        if request is None or request.told != here:
            continue
        load = request.load
        if request.submitted:
            # Of tokens that were drawn, the last is not computed yet: whatever came before it is.
            drawn = load.context_tokens + len(row.tokens) - 1
            load.computed_tokens = drawn if row.tokens else load.computed_tokens + row.prefilled
        if row.tokens:
            load.said(len(row.tokens), ended_s)
            fleet.models[instance.model].crashes_in_a_row = 0
        if row.finish is not None:
            finished.append(request)
            fleet.models[instance.model].outputs.observe(load.tokens_out)
    return finished


def _follow_staged(fleet: Fleet, instance: Instance, event: IterationReported) -> None:
    """Know how much is computed of the streams that are to come to an instance."""
    for row in event.rows if instance.arriving else ():
        if row.request_id in instance.arriving:
            fleet.migrations[row.request_id].computed_tokens += row.prefilled


def _follow_slots(fleet: Fleet, instance: Instance, event: IterationReported) -> None:
    """Know which adapters are in slots now."""
    if instance.load.room is not None:
        known = (fleet.requests.get(row.request_id) for row in event.rows)
        adapters = distinct(one.load.shape for one in known if one is not None)
        instance.load.room = instance.load.room.after(adapters)


def weigh(instance: Instance, event: InstanceReported) -> None:
    """Note what an instance holds."""
    instance.reported_bytes = event.held_bytes
    instance.kv_bytes = event.kv_bytes
    instance.kv_used_bytes = event.kv_used_bytes
    instance.load.block_tokens = event.block_tokens or instance.load.block_tokens


def _forget_older(node: NodeRecord, now: float) -> None:
    """Drop what is too long ago to say how busy a node is."""
    while node.recent and node.recent[0][0] <= now - RECENT_S:
        node.recent.popleft()
