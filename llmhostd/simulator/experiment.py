"""How well does a policy serve a trace on a cluster, by published profiles? One run of the paper's evaluation (§IX)."""

from collections.abc import Callable, Sequence
from functools import partial
from math import exp
from pathlib import Path
from time import process_time

import msgspec

from llmhostd.domain.hardware import NodeKind
from llmhostd.domain.profile import Profile
from llmhostd.domain.words import Word
from llmhostd.simulator.assumptions import Assumptions
from llmhostd.simulator.box import Box
from llmhostd.simulator.callers import AskAgain
from llmhostd.simulator.chance import Chance, Purpose
from llmhostd.simulator.cluster import read_cluster
from llmhostd.simulator.contenders import Field, contender
from llmhostd.simulator.disaggregation import DisaggregatedWorld
from llmhostd.simulator.faults import Faults, Misfortune
from llmhostd.simulator.outcome import Outcome, outcome_of
from llmhostd.simulator.policies import Ablation
from llmhostd.simulator.population import read_population
from llmhostd.simulator.published_profiles import read_published
from llmhostd.simulator.world import World

CHECK_EVERY, CHECK_COUNTS_EVERY = 20_000, 100


class Experiment(Word):
    """What is asked."""

    trace: Path
    profiles: Path
    cluster: str = "4cpu+4gpu"
    """Shorthand, or a JSON file."""
    policy: str = "llmhostd"
    size: str = "7b"
    mix: tuple[tuple[str, int], ...] = ()
    """(size, share): models of several sizes, instead of `size`."""
    models: int | None = None
    """None: all of the trace."""
    minutes: float | None = None
    """Only what arrives in the first minutes of the trace; None: all of it."""
    without: tuple[Ablation, ...] = ()
    disaggregated: bool = False
    """Prefill and decode have instances of their own (§IX-G)."""
    seed: int = 0
    noise: float = 0.0
    """Deviation of the logarithm of an iteration's time, and of what both tables of each profile are wrong by."""
    assumptions: Assumptions = Assumptions()

    @property
    def sizes(self) -> tuple[tuple[str, int], ...]:
        """Sizes and their shares."""
        return self.mix or ((self.size, 1),)


def run(experiment: Experiment) -> Outcome:
    """Simulate one experiment. The same experiment gives the same decisions, in any process.

    Raises OperatorError naming the file, the field or the option that cannot be used.
    """
    began_s = process_time()
    assumptions = experiment.assumptions
    nodes = read_cluster(experiment.cluster, assumptions)
    if Ablation.CPU in experiment.without:
        nodes = tuple(node for node in nodes if node.kind is not NodeKind.CPU)
    specs, requests = read_population(experiment.trace, experiment.models, experiment.sizes, assumptions)
    if experiment.minutes is not None:
        requests = [one for one in requests if one.shape.arrived_s < 60 * experiment.minutes]
    field = Field(specs, nodes, read_published(experiment.profiles), assumptions, experiment.noise)
    contends = contender(experiment.policy, experiment.without, field)
    kind: Callable[..., World] = World
    if experiment.disaggregated:
        kind = partial(DisaggregatedWorld, link_bytes_per_s=assumptions.link_bytes_per_s)
    world = kind(
        Box(nodes=contends.nodes, models=specs, profiles=contends.profiles),
        requests,
        seed=experiment.seed,
        physics=contends.physics,
        truth=_truth(contends.profiles, experiment.noise, Chance(experiment.seed, Purpose.PROFILES)),
        misfortune=Misfortune(Faults(), experiment.seed),
        check_every=CHECK_EVERY,
        check_counts_every=CHECK_COUNTS_EVERY,
        minds=contends.minds,
        ask_again=AskAgain(assumptions.ask_again_s),
        tick_s=assumptions.ask_again_s,
    )
    world.run()
    sizes = "+".join(f"{size}:{share}" for size, share in experiment.mix) or experiment.size
    return outcome_of(world, policy=experiment.policy, size=sizes, models=len(specs), wall_s=process_time() - began_s)


def _truth(profiles: Sequence[Profile], noise: float, chance: Chance) -> tuple[Profile, ...]:
    """Draw how wrong the published tables are on the simulated machines; minds know only what was published."""
    return tuple(
        msgspec.structs.replace(
            each, prefill_correction=exp(noise * chance.normal()), decode_correction=exp(noise * chance.normal())
        )
        for each in profiles
    )
