"""How well does a policy serve a trace on a cluster, by published profiles? One run of the paper's evaluation (§IX)."""

from collections.abc import Sequence
from pathlib import Path
from time import process_time

import msgspec

from llmhostd.domain.hardware import NodeKind, NodeSpec
from llmhostd.domain.model import ModelSpec
from llmhostd.domain.profile import Profile
from llmhostd.domain.words import Word
from llmhostd.simulator.assumptions import GIB, SIZES, Assumptions, KvGrowth
from llmhostd.simulator.box import Box
from llmhostd.simulator.callers import AskAgain
from llmhostd.simulator.cluster import read_cluster
from llmhostd.simulator.device import Physics
from llmhostd.simulator.faults import Faults, Misfortune
from llmhostd.simulator.outcome import Outcome, outcome_of
from llmhostd.simulator.policies import Ablation, elastic
from llmhostd.simulator.population import read_population
from llmhostd.simulator.published_profiles import PublishedProfile, as_profile, find, read_published
from llmhostd.simulator.world import World

CHECK_EVERY = 20_000


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
    without: tuple[Ablation, ...] = ()
    seed: int = 0
    noise: float = 0.0
    """Deviation of the logarithm of an iteration's time."""
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
    published = read_published(experiment.profiles)
    nodes = read_cluster(experiment.cluster, assumptions)
    if Ablation.CPU in experiment.without:
        nodes = tuple(node for node in nodes if node.kind is not NodeKind.CPU)
    specs, requests = read_population(experiment.trace, experiment.models, experiment.sizes, assumptions)
    policies = elastic(experiment.policy, assumptions, experiment.without)
    if policies.runtime_per_node:
        nodes = tuple(_with_one_runtime(node, assumptions) for node in nodes)
    worker_gib = 0.0 if policies.runtime_per_node else assumptions.worker_gib
    world = World(
        Box(nodes=nodes, models=specs, profiles=_profiles(published, specs, nodes, assumptions, worker_gib)),
        requests,
        seed=experiment.seed,
        physics=physics_of(assumptions, experiment.noise),
        misfortune=Misfortune(Faults(), experiment.seed),
        check_every=CHECK_EVERY,
        minds=policies.minds(),
        ask_again=AskAgain(assumptions.ask_again_s),
        tick_s=assumptions.ask_again_s,
    )
    world.run()
    sizes = "+".join(f"{size}:{share}" for size, share in experiment.mix) or experiment.size
    return outcome_of(world, policy=experiment.policy, size=sizes, models=len(specs), wall_s=process_time() - began_s)


def physics_of(assumptions: Assumptions, noise: float) -> Physics:
    """What no profile says of the machines."""
    copies = assumptions.kv_growth is KvGrowth.COPY
    return Physics(
        noise=noise,
        loading_slowdown=1.0,
        kv_grow_s=0.0,
        kv_shrink_s=0.0,
        kv_copy_s_per_byte=1 / assumptions.kv_copy_bytes_per_s if copies else 0.0,
        kv_allocate_s_per_byte=0.0 if copies else 1 / assumptions.kv_allocate_bytes_per_s,
        kv_shrink_s_per_byte=1 / assumptions.kv_shrink_bytes_per_s,
        unload_s=assumptions.unload_s,
    )


def _with_one_runtime(node: NodeSpec, assumptions: Assumptions) -> NodeSpec:
    """Take the memory of one worker from a GPU, whatever it will host."""
    if node.kind is not NodeKind.GPU:
        return node
    return msgspec.structs.replace(node, memory_bytes=node.memory_bytes - int(assumptions.worker_gib * GIB))


def _profiles(
    published: tuple[PublishedProfile, ...],
    specs: Sequence[ModelSpec],
    nodes: Sequence[NodeSpec],
    assumptions: Assumptions,
    worker_gib: float,
) -> tuple[Profile, ...]:
    """One profile per model shape and hardware; `worker_gib` is what an instance on a GPU holds beside its weights."""
    shapes = {spec.shape.key: (spec.name.partition("-")[0], spec.shape) for spec in specs}
    profiles: list[Profile] = []
    for hardware_key, kind in {node.hardware_key: node.kind for node in nodes}.items():
        for key, (size, shape) in shapes.items():
            gpu = kind is NodeKind.GPU
            load_s = shape.weight_bytes / assumptions.gpu_load_bytes_per_s if gpu else assumptions.cpu_load_s
            held_bytes = shape.weight_bytes + int(worker_gib * GIB if gpu else 0)
            measured = find(published, SIZES[size].published_as, hardware_key)
            profiles.append(as_profile(measured, key, hardware_key, load_s=load_s, held_bytes=held_bytes))
    return tuple(profiles)
