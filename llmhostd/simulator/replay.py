"""What would this box do with this load?"""

from collections.abc import Sequence
from pathlib import Path

from llmhostd.bench.load import Load, schedule
from llmhostd.bench.schedule import Lengths
from llmhostd.domain.events import HostEvent
from llmhostd.simulator.box import Box, complete, make_box, read_box
from llmhostd.simulator.chance import Chance, Purpose
from llmhostd.simulator.device import Physics
from llmhostd.simulator.faults import Faults, Misfortune
from llmhostd.simulator.report import Effort, Report, report_on
from llmhostd.simulator.roofline import Roofline
from llmhostd.simulator.workload import SimulatedRequest, requests_of
from llmhostd.simulator.world import World

CHECK_EVERY = 500


def simulate(
    *,
    trace: Path | None = None,
    box: Path | None = None,
    models: int = 8,
    sizes: Sequence[str] = ("160m",),
    nodes: int = 1,
    memory_bytes: int = 16 << 30,
    requests: int | None = None,
    duration_s: float | None = None,
    rate: float = 3.0,
    burst: tuple[float, float] | None = None,
    zipf: float = 1.0,
    input_tokens: tuple[int, int] = (140, 140),
    output_tokens: tuple[int, int] = (30, 30),
    best_effort_share: float = 0.0,
    noise: float = 0.0,
    faults: Faults | None = None,
    seed: int = 0,
) -> Report:
    """Simulate a load on a box: `llmhostd simulate`.

    The load is a `trace` file, or drawn: `rate` requests per second, Poisson or in bursts of (on, off) seconds, over
    the models by Zipf, with uniform lengths (first, last). The box is a `box` file, or made of alike nodes and `models`
    models of `sizes` in turn. `noise` is the deviation of the logarithm of an iteration's time.
    Raises OperatorError naming the file and what is wrong in it.
    """
    described = read_box(box) if box else make_box(models=models, sizes=sizes, nodes=nodes, memory_bytes=memory_bytes)
    load = Load(
        models=[spec.name for spec in described.models],
        trace=trace,
        rate=rate,
        burst=burst,
        duration_s=duration_s,
        requests=requests,
        zipf=zipf,
        input_tokens=Lengths(first=input_tokens[0], last=input_tokens[1]),
        output_tokens=Lengths(first=output_tokens[0], last=output_tokens[1]),
        seed=seed,
    )
    planned = schedule(load, load.models)
    tiers = Chance(seed, Purpose.TIERS)
    asked = requests_of(planned, described.models, chance=tiers, best_effort_share=best_effort_share)
    return replay(asked, described, seed=seed, noise=noise, faults=faults)


def replay(
    requests: Sequence[SimulatedRequest],
    box: Box,
    *,
    seed: int = 0,
    noise: float = 0.0,
    faults: Faults | None = None,
    physics: Physics | None = None,
    measured: bool = True,
    check_every: int = CHECK_EVERY,
    told: Sequence[tuple[float, HostEvent]] = (),
) -> Report:
    """Play these requests on this box. The same arguments give the same decisions, in any process.

    `told`: what else the host hears, and when.

    Every step's sums are checked, and every `check_every`-th step everything (`host.invariants`, `node.invariants`).
    """
    world = World(
        complete(box, Roofline()),
        requests,
        seed=seed,
        physics=physics or Physics(noise=noise),
        misfortune=Misfortune(faults or Faults(), seed),
        check_every=check_every,
        measured=measured,
        told=told,
    )
    world.run()
    counts = world.counts
    effort = Effort(
        iterations=counts["RunIteration"],
        busy=world.computed_s / max(world.now * len(box.nodes), 1e-9),
        loads=counts["LoadInstance"],
        rests=counts["RestInstance"],
        unloads=counts["UnloadInstance"],
        worker_deaths=counts["deaths"],
        moved=world.callers.moves,
    )
    return report_on(list(world.callers.observations.values()), effort, seed=seed, digest=world.digest)
