"""Is the way that is chosen the soonest of all ways?"""

from itertools import permutations, product

from hypothesis import given, settings
from hypothesis import strategies as st

from llmhostd.checkpoints.tiers import StartPolicy, StartRates
from llmhostd.domain.start import TierBytes
from llmhostd.migration.cost import ResumeCost
from llmhostd.migration.start_choice import (
    Model,
    Running,
    Server,
    load_s,
    soonest,
    soonest_by_stopping,
)

READ_S = StartRates(StartPolicy(memory_bytes_per_s=10.0, disk_bytes_per_s=2.0)).read_s
RESUME = ResumeCost(0.01, 0.05)
MODELS = [Model(f"m{n}", 1, 10 + n) for n in range(4)]


@st.composite
def clusters(draw: st.DrawFn) -> list[Server]:
    servers = []
    for place in range(draw(st.integers(1, 3))):
        running = [
            Running(place * 10 + n, draw(st.sampled_from(MODELS)), draw(st.integers(0, 500)))
            for n in range(draw(st.integers(0, 2)))
        ]
        near = {one.name: draw(st.booleans()) for one in MODELS}
        lies = {
            one.name: TierBytes(memory_bytes=one.weight_bytes)
            if near[one.name]
            else TierBytes(disk_bytes=one.weight_bytes)
            for one in MODELS
        }
        free = draw(st.integers(0, 2))
        idle = {draw(st.sampled_from(MODELS)).name: 1} if free and draw(st.booleans()) else {}
        servers.append(Server(place, free, draw(st.floats(0.0, 3.0)), lies, idle, running))
    return servers


def best_by_trying(model: Model, servers: list[Server], gpus: int) -> float | None:
    """Every server; every order and destination of everybody who could leave it."""
    found = []
    for server in servers:
        need = gpus - server.free_gpus
        if need <= 0:
            found.append(load_s(model, server, READ_S))
            continue
        others = [each for each in servers if each is not server]
        for leaving in permutations(server.running, need):
            for places in product(range(len(others)), repeat=need):
                done_s = moved_s(leaving, [others[place] for place in places])
                if done_s is not None:
                    found.append(done_s + load_s(model, server, READ_S))
    return min(found, default=None)


def moved_s(leaving: tuple[Running, ...], to: list[Server]) -> float | None:
    """When all of them have gone on elsewhere, one load at a time per server."""
    free = {each.id: each.free_gpus for each in to}
    queue_s = {each.id: each.queue_s for each in to}
    idle = {(each.id, name): count for each in to for name, count in each.idle.items()}
    done_s = 0.0
    for who, server in zip(leaving, to, strict=True):
        free[server.id] -= who.model.gpus
        if free[server.id] < 0:
            return None
        arrives_s = 0.0
        if idle.get((server.id, who.model.name)):
            idle[server.id, who.model.name] = 0
        else:
            queue_s[server.id] += READ_S(server.lies[who.model.name])
            arrives_s = queue_s[server.id]
        done_s = max(done_s, arrives_s + RESUME.resume_s(who.tokens))
    return done_s


@given(clusters(), st.sampled_from(MODELS))
def test_of_one_gpu_it_is_the_soonest_of_all_ways(servers: list[Server], model: Model) -> None:
    way, best = soonest(model, servers, READ_S, RESUME), best_by_trying(model, servers, 1)
    assert (way is None) == (best is None)
    assert way is None or best is None or abs(way.start_s - best) < 1e-9


@settings(max_examples=200)
@given(clusters(), st.sampled_from(MODELS))
def test_of_two_gpus_it_is_a_way_and_never_sooner_than_the_soonest(servers: list[Server], model: Model) -> None:
    wide = Model(model.name, 2, model.weight_bytes)
    way, best = soonest(wide, servers, READ_S, RESUME), best_by_trying(wide, servers, 2)
    assert (way is None) == (best is None)
    if way is not None and best is not None:
        assert way.start_s >= best - 1e-9
        assert len({move.who.id for move in way.moves}) == len(way.moves)
        server = next(each for each in servers if each.id == way.server)
        assert server.free_gpus + len(way.moves) >= 2
        assert all(move.to != way.server for move in way.moves)


@given(clusters(), st.sampled_from(MODELS))
def test_stopping_somebody_is_as_soon_as_if_nobody_ran(servers: list[Server], model: Model) -> None:
    found = soonest_by_stopping(model, servers, READ_S)
    able = [each for each in servers if each.free_gpus + len(each.running) >= 1]
    assert (found is None) == (not able)
    if found is not None:
        way, stopped = found
        assert abs(way.start_s - min(load_s(model, each, READ_S) for each in able)) < 1e-9
        here = next(each for each in servers if each.id == way.server)
        assert all(who in here.running for who in stopped)
        assert here.free_gpus + len(stopped) >= 1
        assert not stopped or all(who.tokens >= stopped[-1].tokens for who in here.running if who not in stopped)


def test_somebody_moves_only_if_that_is_sooner_than_the_disk() -> None:
    here, there = MODELS[0], MODELS[1]
    near, far = TierBytes(memory_bytes=10), TierBytes(disk_bytes=10)
    busy = Server(0, 0, 0.0, {"m0": near, "m1": near}, {}, [Running(7, there, 100)])
    free = Server(1, 1, 0.0, {"m0": far, "m1": near}, {}, [])
    way = soonest(here, [busy, free], READ_S, RESUME)
    assert way is not None
    assert (way.server, [(move.who.id, move.to) for move in way.moves]) == (0, [(7, 1)])
    assert abs(way.start_s - (1.0 + 1.05 + 1.0)) < 1e-9
    longer = Server(0, 0, 0.0, busy.lies, {}, [Running(7, there, 10_000)])
    stays = soonest(here, [longer, free], READ_S, RESUME)
    assert stays is not None
    assert (stays.server, stays.start_s) == (1, 5.0)
