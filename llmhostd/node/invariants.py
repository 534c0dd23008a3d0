"""What must hold of a node mind after every step? Anyone may ask: tests, the simulator, a worker with checks on."""

from llmhostd.compute.adapter_turns import distinct
from llmhostd.compute.demand import Demand, demand_of
from llmhostd.node.core import NodeMind
from llmhostd.node.instance import NOT_LOADED_S
from llmhostd.node.memory import hold, promise
from llmhostd.node.states import LOADS, Phase


class NodeInvariantError(AssertionError):
    """A node mind contradicts itself; says how."""


def check(mind: NodeMind) -> None:
    """Raise NodeInvariantError unless everything holds."""
    for holds, what in _claims(mind):
        if not holds:
            raise NodeInvariantError(f"{mind.spec.id}: {what}")


def _claims(mind: NodeMind) -> list[tuple[bool, str]]:
    held = {key: one.id for one in mind.instances.values() for key in one.load.requests}
    background = [one.id for one in mind.instances.values() if one.phase in LOADS]
    requests = mind.requests
    claims = [
        (held == requests.where, "a request is in no place, or in two"),
        (list(mind.load.instances) == list(mind.instances), "the timing picture and the instances differ"),
        (len(background) <= 1, f"{background} load at once"),
        (background == [mind.lifecycle.background] or not background, "the background operation is not the one noted"),
        (all(key in requests.where for key in requests.leaving), "a request that leaves is nowhere"),
        (mind.device.best_effort_s >= -1e-9, "best effort took more of the device than its share"),
    ]
    for one in mind.instances.values():
        claims.append((one.phase is Phase.FILLING or not one.lacks_weights, f"{one.id} waits for weights that it has"))
        claims.append(
            (one.ready == (one.load.ready_at_s < NOT_LOADED_S), f"{one.id}: {one.phase}, but runnable or not")
        )
        within = {key: 0 <= r.computed_tokens < r.context_tokens for key, r in one.load.requests.items()}
        claims += [(holds, f"{key}: computed beyond its context") for key, holds in within.items()]
        known = not all(within.values()) or _sums(mind.agenda.demand(one.id)) == _sums(demand_of(one.load))
        claims.append((known, f"{one.id}: what the agenda has summed up is out of date"))
    return claims + _device_claims(mind) + _memory_claims(mind)


def _sums(demand: Demand) -> tuple[object, ...]:
    """What an agenda knows of an instance; deadlines to the microsecond, which is as exact as sums of seconds are.

    When a first token is due that cannot be in time depends on when that was seen.
    """
    batch = demand.batch
    lists = [[one.shape.id for one in requests] for requests in (batch.requests, demand.prefills, demand.best_effort)]
    due_s = [round(one.promised_s, 6) for one in demand.dues]
    tokens = (batch.context_tokens, batch.ends_in_tokens, batch.alike)
    return *lists, due_s, *tokens


def _device_claims(mind: NodeMind) -> list[tuple[bool, str]]:
    running = mind.device.running
    claims: list[tuple[bool, str]] = []
    if running is not None:
        one = mind.instances.get(running.instance_id)
        claims.append((one is not None and one.present, f"{running.instance_id} computes but is not loaded"))
        claims.append((one is None or not one.blocked, f"{running.instance_id} computes while its pool is resized"))
        if one is not None and running.rows:
            planned = {row.request_id: row.tokens for row in running.rows}
            claims.append((len(planned) == len(running.rows), f"{one.id}: a request is twice in one iteration"))
            claims.append((planned.keys() <= one.load.requests.keys(), f"{one.id}: the iteration has unknown requests"))
            claims.append((one.blocks_with(planned) <= one.kv_blocks, f"{one.id}: the iteration overflows its KV pool"))
            shapes = [one.load.requests[key].shape for key in planned if key in one.load.requests]
            slots = one.load.room.slots if one.load.room else 0
            claims.append((len(distinct(shapes)) <= slots, f"{one.id}: the iteration has more adapters than slots"))
    return claims


def _memory_claims(mind: NodeMind) -> list[tuple[bool, str]]:
    """Both sums say what is known of the instances, and what waits is known to be on its way."""
    memory = mind.memory
    claims = [(False, broken) for ledger in (memory.promised, memory.held) for broken in ledger.violations()]
    sums = {"promised": (memory.promised, 0), "held": (memory.held, 0)}
    for one in mind.instances.values():
        waits = one.id in memory.waiting
        claims += [
            (memory.promised.of(one.id) == sum(promise(one, one.kv_target)), f"{one.id}: the promise is out of date"),
            (memory.held.of(one.id) == sum(hold(one)), f"{one.id}: what it holds is out of date"),
            (one.blocked == (waits or one.resizing), f"{one.id}: it is blocked, or not, without a reason"),
            (not (waits and one.resizing), f"{one.id}: its pool is resized and waits for that at once"),
            (waits <= (one.kv_target > one.kv_blocks), f"{one.id}: it waits for a pool that it has"),
            (one.blocked or one.kv_target == one.kv_blocks, f"{one.id}: a resize was promised and forgotten"),
        ]
        sums = {name: (ledger, total + ledger.of(one.id)) for name, (ledger, total) in sums.items()}
    for name, (ledger, total) in sums.items():
        claims.append((total == ledger.owned_bytes, f"{name}: somebody who is not here owns bytes"))
    return claims
