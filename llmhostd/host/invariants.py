"""What must hold after every step, whatever happened? Anyone may ask.

`check` looks at everything; `check_counts` only at sums, cheaply enough for every step of a long simulation.
"""

from collections import Counter
from collections.abc import Iterator

from llmhostd.domain.model import ModelState
from llmhostd.host.core import HostMind
from llmhostd.host.request import LiveRequest


class BrokenInvariantError(AssertionError):
    """A mind contradicts itself: our fault, never the caller's or the operator's."""


def check(mind: HostMind) -> None:
    """Look at everything. Raises BrokenInvariantError with every contradiction, one a line."""
    broken = [*_counts(mind), *_requests(mind), *_instances(mind), *_migrations(mind), *_bytes(mind)]
    if broken:
        raise BrokenInvariantError("\n".join(broken))


def check_counts(mind: HostMind) -> None:
    """Look at the sums. Raises BrokenInvariantError."""
    broken = list(_counts(mind))
    if broken:
        raise BrokenInvariantError("\n".join(broken))


def _counts(mind: HostMind) -> Iterator[str]:
    """Every admitted request is counted once, and every node's bytes add up."""
    placed = sum(len(load.requests) for node in mind.fleet.nodes.values() for load in node.load.instances.values())
    queued = len(mind.fleet.waiting)
    if placed + queued != len(mind.fleet.requests):
        yield f"{len(mind.fleet.requests)} live requests, but {placed} placed and {queued} queued"
    for node in mind.fleet.nodes.values():
        if len(node.station) > len(node.load.instances):
            yield f"{node.spec.id}: more operations wait than there are instances"
        for ledger in (node.promised, node.held):
            if ledger.owned_bytes + ledger.free_bytes != ledger.capacity_bytes:
                yield f"{node.spec.id}: owned and free bytes are not its capacity"


def _requests(mind: HostMind) -> Iterator[str]:
    """Every admitted request is exactly once on an instance or in a queue, and its node was told what it runs."""
    places: Counter[str] = Counter()
    for instance in mind.fleet.instances.values():
        for request_id, load in instance.load.requests.items():
            request = mind.fleet.requests.get(request_id)
            if request is None or request.load is not load or request.instance_id != instance.id:
                yield f"{request_id} is in the mirror of {instance.id}, but is not assigned to it"
            places[request_id] += 1
    for request_id, request in mind.fleet.requests.items():
        places[request_id] += mind.fleet.waiting.places_of(request)
        if places[request_id] != 1:
            yield f"{request_id} is in {places[request_id]} places"
        yield from _progress(mind, request)


def _progress(mind: HostMind, request: LiveRequest) -> Iterator[str]:
    load = request.load
    if not 0 <= load.computed_tokens < load.context_tokens:
        yield f"{load.shape.id} has {load.computed_tokens} of {load.context_tokens} context tokens computed"
    if request.submitted and (request.told is None or request.told[1] != request.instance_id):
        yield f"{load.shape.id} runs on {request.instance_id}, but {request.told} was told to run it"
    if request.hope and request.instance_id:
        yield f"{load.shape.id} has a place and waits for its first one"
    if request.submitted:
        instance = mind.fleet.instances[request.instance_id] if request.instance_id else None
        if instance is None or instance.state in (ModelState.COLD, ModelState.UNLOADING):
            yield f"{load.shape.id} was submitted to nobody who could run it"


def _instances(mind: HostMind) -> Iterator[str]:
    """The mirror has exactly the instances that exist; nodes that are down have none; no model is twice on a node."""
    fleet = mind.fleet
    for node in fleet.nodes.values():
        mine = [each for each in fleet.instances.values() if each.node_id == node.spec.id]
        if [(each.id, id(each.load)) for each in mine] != [
            (key, id(load)) for key, load in node.load.instances.items()
        ]:
            yield f"{node.spec.id}: its mirror is not its instances"
        if mine and not node.up:
            yield f"{node.spec.id} is down and has instances"
        staying = Counter((each.model, each.shape.key) for each in mine if each.state is not ModelState.UNLOADING)
        yield from (f"{node.spec.id} has {key[0]} {count} times" for key, count in staying.items() if count > 1)
        for request_id, instance_id in node.leaving.items():
            if instance_id not in node.load.instances:
                yield f"{request_id} leaves {instance_id}, which does not exist"
            if any(request_id in each.load.requests for each in mine):
                yield f"{request_id} is to run on {node.spec.id}, which has not let go of it yet"
        yield from (f"{node.spec.id}: {why}" for why in node.station.violations())
        for operation in node.station:
            if operation.instance_id not in node.load.instances:
                yield f"{operation.instance_id} waits for memory and does not exist"


def _migrations(mind: HostMind) -> Iterator[str]:
    """Whatever is on its way runs at its source, and is expected at its destination, where no stay of it is left."""
    fleet = mind.fleet
    expected = {name: each for each in fleet.instances.values() for name in each.arriving}
    if expected.keys() != fleet.migrations.keys() or len(expected) != sum(
        len(each.arriving) for each in fleet.instances.values()
    ):
        yield f"{sorted(fleet.migrations)} are on their way, and {sorted(expected)} are expected"
        return
    for name, node_id in fleet.following.items():
        if name not in fleet.requests:
            yield f"{name} is to follow to {node_id}, and is not there any more"
    for name, migration in fleet.migrations.items():
        request, instance = fleet.requests.get(name), expected[name]
        if request is None or request.instance_id != migration.source or not request.submitted:
            yield f"{name} is on its way from {migration.source}, but does not run there"
        elif instance.arriving[name] is not request.load or instance.id != migration.destination:
            yield f"{name} is on its way to {migration.destination}, but {instance.id} expects another"
        elif fleet.instances[migration.source].node_id == instance.node_id:
            yield f"{name} is on its way to the node on which it runs"
        node = fleet.node_of(instance)
        if name in node.leaving or name in node.dropping:
            yield f"{name} is to come to {node.spec.id}, which has not let go of it yet"
        if not 0 <= migration.computed_tokens <= max(migration.sent_tokens - 1, 0):
            yield f"{name}: {migration.computed_tokens} tokens are computed of {migration.sent_tokens} that were sent"


def _bytes(mind: HostMind) -> Iterator[str]:
    """Both sums of every node are what its instances need, were granted and reported, and nothing else."""
    for node in mind.fleet.nodes.values():
        yield from (f"{node.spec.id}, promised: {why}" for why in node.promised.violations())
        yield from (f"{node.spec.id}, held: {why}" for why in node.held.violations())
        all_promised_bytes = held_bytes = 0
        for instance in mind.fleet.instances_on(node):
            least_bytes, most_bytes = mind.budget.promisable_bytes(instance)
            promised_bytes = node.promised.of(instance.id)
            all_promised_bytes += promised_bytes
            held_bytes += sum(map(max, (instance.reported_bytes, instance.kv_bytes), instance.granted_bytes))
            if not least_bytes <= promised_bytes <= most_bytes:
                yield f"{instance.id} needs {least_bytes} bytes and was promised {promised_bytes}"
        if (all_promised_bytes, held_bytes) != (node.promised.owned_bytes, node.held.owned_bytes):
            yield f"{node.spec.id}: bytes are owned by nobody"
