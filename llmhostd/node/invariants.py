"""What must hold of a node mind after every step? Anyone may ask: tests, the simulator, a worker with checks on."""

from llmhostd.node.core import NodeMind
from llmhostd.node.instance import NOT_LOADED_S
from llmhostd.node.states import Phase


class NodeInvariantError(AssertionError):
    """A node mind contradicts itself; says how."""


def check(mind: NodeMind) -> None:
    """Raise NodeInvariantError unless everything holds."""
    for holds, what in _claims(mind):
        if not holds:
            raise NodeInvariantError(f"{mind.spec.id}: {what}")


def _claims(mind: NodeMind) -> list[tuple[bool, str]]:
    held = {key: one.id for one in mind.instances.values() for key in one.load.requests}
    background = [one.id for one in mind.instances.values() if one.phase in (Phase.LOADING, Phase.RESTING)]
    claims = [
        (held == mind.where, "a request is in no place, or in two"),
        (list(mind.load.instances) == list(mind.instances), "the timing picture and the instances differ"),
        (len(background) <= 1, f"{background} load at once"),
        (background == [mind.lifecycle.background] or not background, "the background operation is not the one noted"),
        (not (mind.device.running and mind.device.resizing), "an iteration and a resize run at once"),
        (all(key in mind.where for key in mind.leaving), "a request that leaves is nowhere"),
        (mind.device.best_effort_s >= -1e-9, "best effort took more of the device than its share"),
    ]
    for one in mind.instances.values():
        ready = one.computes and one.estimator is not None
        claims.append((ready == (one.load.ready_at_s < NOT_LOADED_S), f"{one.id}: {one.phase}, but runnable or not"))
        for key, request in one.load.requests.items():
            claims.append(
                (0 <= request.computed_tokens < request.context_tokens, f"{key}: computed beyond its context")
            )
    return claims + _device_claims(mind)


def _device_claims(mind: NodeMind) -> list[tuple[bool, str]]:
    running, resizing = mind.device.running, mind.device.resizing
    claims: list[tuple[bool, str]] = []
    if running is not None:
        one = mind.instances.get(running.instance_id)
        claims.append((one is not None and one.computes, f"{running.instance_id} computes but is not loaded"))
        if one is not None and running.rows:
            planned = {row.request_id: row.tokens for row in running.rows}
            claims.append((len(planned) == len(running.rows), f"{one.id}: a request is twice in one iteration"))
            claims.append((planned.keys() <= one.load.requests.keys(), f"{one.id}: the iteration has unknown requests"))
            claims.append((one.blocks_with(planned) <= one.kv_blocks, f"{one.id}: the iteration overflows its KV pool"))
    if resizing is not None and resizing.instance_id in mind.instances:
        one = mind.instances[resizing.instance_id]
        grows_bytes = (resizing.kv_blocks - one.kv_blocks) * one.block_bytes
        fits = grows_bytes <= 0 or mind.device.pools.held_bytes() + grows_bytes <= mind.spec.memory_bytes
        claims.append((fits, f"{one.id}: its KV pool grows beyond the node's memory"))
    return claims
