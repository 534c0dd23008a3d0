"""What did a node do, as far as its host must know to plan?"""

from llmhostd.compute.workload import RequestLoad
from llmhostd.domain.reports import InstanceReported, IterationReported, RowReport
from llmhostd.host.fleet import Fleet, NodeRecord
from llmhostd.host.instance import Instance
from llmhostd.host.request import LiveRequest

RECENT_S = 1.0
"""How far back a node's load is looked at."""


def advance(fleet: Fleet, event: IterationReported) -> list[LiveRequest]:
    """Follow one iteration; returns the requests that it finished. Rows of requests that left are late news."""
    node, instance = fleet.nodes[event.node_id], fleet.instances.get(event.instance_id)
    ended_s = event.started_s + event.duration_s
    node.load.busy_until_s = ended_s
    node.recent.append((ended_s, event.duration_s, sum(len(row.tokens) for row in event.rows)))
    _forget_older(node, ended_s)
    if instance is None:
        return []
    instance.last_used_s = max(instance.last_used_s, ended_s)
    finished: list[LiveRequest] = []
    for row in event.rows:
        load = instance.load.requests.get(row.request_id)
        if load is None:
            load = _last_words(fleet, instance, row)
        elif row.tokens:
            # The last of them is not computed yet: whatever came before it is.
            load.computed_tokens = load.context_tokens + len(row.tokens) - 1
        else:
            load.computed_tokens += row.prefilled
        if load is None:
            continue
        if row.tokens:
            load.said(len(row.tokens), ended_s)
            fleet.models[instance.model].crashes_in_a_row = 0
        if row.finish is not None:
            finished.append(fleet.requests[row.request_id])
            fleet.models[instance.model].outputs.observe(load.tokens_out)
    return finished


def _last_words(fleet: Fleet, instance: Instance, row: RowReport) -> RequestLoad | None:
    """Find a request that was told to leave while it computed: its caller gets this token, so it moves with it."""
    departing = fleet.waiting.departing(instance.id, row.request_id)
    return departing.load if departing else None


def weigh(instance: Instance, event: InstanceReported) -> None:
    """Note what an instance holds."""
    instance.reported_bytes = event.held_bytes
    instance.kv_bytes = event.kv_bytes
    instance.kv_used_bytes = event.kv_used_bytes


def _forget_older(node: NodeRecord, now: float) -> None:
    """Drop what is too long ago to say how busy a node is."""
    while node.recent and node.recent[0][0] <= now - RECENT_S:
        node.recent.popleft()
