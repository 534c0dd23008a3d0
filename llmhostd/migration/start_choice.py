"""On which server does a model start soonest, perhaps after somebody made room by moving? (ServerlessLLM §6.)

Every server is asked: what runs there idle starts at once; else its queue, and the bytes by the slowest tier on their
way. Where all GPUs compute, those who run there may go on elsewhere as their tokens: each costs the load of its model
at the destination and a x (t_in + t_out) + b (§6.2). Who moves where is found by dynamic programming over those who
run, so that as many GPUs as are needed are free the soonest.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from llmhostd.domain.start import TierBytes
from llmhostd.migration.cost import ResumeCost

ReadTime = Callable[[TierBytes], float]
"""How long it takes to bring weights in that lie so."""


class Model(NamedTuple):
    """What is to be started."""

    name: str
    gpus: int
    """GPUs of one instance."""
    weight_bytes: int


class Running(NamedTuple):
    """One answer that is being computed."""

    id: int
    model: Model
    tokens: int
    """t_in + t_out so far."""


@dataclass(frozen=True, slots=True)
class Server:
    """One server as a decision sees it."""

    id: int
    free_gpus: int
    """Nobody computes there, nor is about to; idle instances on them give way."""
    queue_s: float
    """Until the loads that were ordered there are over."""
    lies: Mapping[str, TierBytes]
    """Where the weights of each model lie, as seen from there."""
    idle: Mapping[str, int]
    """Instances of each model that are loaded and compute nothing."""
    running: Sequence[Running]
    """Who may be moved."""


@dataclass(frozen=True, slots=True)
class Move:
    """An answer goes on elsewhere."""

    who: Running
    to: int
    """Server."""
    takes_s: float


@dataclass(frozen=True, slots=True)
class Way:
    """One way to start a model."""

    server: int
    start_s: float
    moves: tuple[Move, ...] = ()


def soonest(model: Model, servers: Sequence[Server], read_s: ReadTime, resume: ResumeCost) -> Way | None:
    """Find the way by which a model starts soonest; of equals the one that moves fewest. None: nobody has room."""
    ways = list(_ways(model, servers, cache(read_s), resume))
    return min(ways, key=lambda way: (way.start_s, len(way.moves), way.server), default=None)


def soonest_by_stopping(model: Model, servers: Sequence[Server], read_s: ReadTime) -> tuple[Way, list[Running]] | None:
    """The same if those who run can only be stopped, at once: the way, and whom (who lost least first).

    As Shepherd* does (§7.3): the server is told by the same estimates. None: nobody has room.
    """
    found: list[tuple[float, int, int, list[Running]]] = []
    for server in servers:
        stopped: list[Running] = []
        for who in sorted(server.running, key=lambda one: (one.tokens, one.id)):
            if server.free_gpus + sum(one.model.gpus for one in stopped) < model.gpus:
                stopped.append(who)
        if server.free_gpus + sum(one.model.gpus for one in stopped) >= model.gpus:
            found.append((load_s(model, server, read_s), len(stopped), server.id, stopped))
    if not found:
        return None
    start_s, _, server_id, stopped = min(found, key=lambda one: one[:3])
    return Way(server_id, start_s), stopped


def load_s(model: Model, server: Server, read_s: ReadTime) -> float:
    """How long a server with a free GPU takes to start a model: q + n / b; nothing where it is loaded and idle."""
    if server.idle.get(model.name):
        return 0.0
    return server.queue_s + read_s(server.lies[model.name])


def _ways(model: Model, servers: Sequence[Server], read_s: ReadTime, resume: ResumeCost) -> Iterator[Way]:
    for server in servers:
        own_s = load_s(model, server, read_s)
        if server.free_gpus >= model.gpus:
            yield Way(server.id, own_s)
            continue
        others = [each for each in servers if each is not server]
        moves = _room(model.gpus - server.free_gpus, server.running, others, read_s, resume)
        if moves:
            yield Way(server.id, max(move.takes_s for move in moves) + own_s, moves)


class _Plan(NamedTuple):
    """Moves that free some GPUs, and what they leave of the destinations."""

    done_s: float
    moves: tuple[Move, ...]
    free: tuple[int, ...]
    queue_s: tuple[float, ...]


def _room(
    gpus: int, running: Sequence[Running], others: Sequence[Server], read_s: ReadTime, resume: ResumeCost
) -> tuple[Move, ...]:
    """Choose who moves where so that at least so many GPUs are free the soonest; none: it cannot be done."""
    nothing = _Plan(0.0, (), tuple(each.free_gpus for each in others), tuple(each.queue_s for each in others))
    best: dict[int, _Plan] = {0: nothing}
    """By GPUs that become free (or more): the plan that is done first."""
    for who in running:
        for freed, plan in sorted(best.items(), reverse=True):
            if freed >= gpus:
                continue
            moved = _moved(plan, who, others, read_s, resume)
            now_free = min(freed + who.model.gpus, gpus)
            if moved and (now_free not in best or moved.done_s < best[now_free].done_s):
                best[now_free] = moved
    return best[gpus].moves if gpus in best else ()


def _moved(plan: _Plan, who: Running, others: Sequence[Server], read_s: ReadTime, resume: ResumeCost) -> _Plan | None:
    """Add a move to where it is done first; loads at one destination wait for each other."""
    found: tuple[float, int, bool] | None = None
    for place, server in enumerate(others):
        if plan.free[place] < who.model.gpus:
            continue
        loaded = bool(server.idle.get(who.model.name)) and not any(
            move.to == server.id and move.who.model.name == who.model.name for move in plan.moves
        )
        arrives_s = 0.0 if loaded else plan.queue_s[place] + read_s(server.lies[who.model.name])
        if found is None or arrives_s < found[0]:
            found = (arrives_s, place, loaded)
    if found is None:
        return None
    arrives_s, place, loaded = found
    move = Move(who, others[place].id, arrives_s + resume.resume_s(who.tokens))
    free = tuple(each - who.model.gpus if at == place else each for at, each in enumerate(plan.free))
    queue = tuple(arrives_s if at == place and not loaded else each for at, each in enumerate(plan.queue_s))
    return _Plan(max(plan.done_s, move.takes_s), (*plan.moves, move), free, queue)
