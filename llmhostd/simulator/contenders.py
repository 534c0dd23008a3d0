"""Who decides in an experiment, over which nodes and profiles? What differs between policies, ready for a world."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from llmhostd.domain.errors import OperatorError
from llmhostd.domain.hardware import NodeKind, NodeSpec
from llmhostd.domain.ids import HardwareKey, ShapeKey
from llmhostd.domain.model import ModelShape, ModelSpec
from llmhostd.domain.profile import Profile
from llmhostd.simulator.assumptions import GIB, SIZES, Assumptions, KvGrowth
from llmhostd.simulator.baselines import HALVES, BaselinePolicy, ExclusiveMind
from llmhostd.simulator.device import Physics
from llmhostd.simulator.minds import Minds
from llmhostd.simulator.policies import ELASTIC, Ablation, elastic, slinfer
from llmhostd.simulator.published_profiles import PublishedProfile, as_profile, find

BASELINES: dict[str, tuple[tuple[NodeKind, ...], bool]] = {
    "sllm": ((NodeKind.GPU,), False),
    "sllm+c": ((NodeKind.CPU, NodeKind.GPU), False),
    "sllm+c+s": ((NodeKind.CPU, NodeKind.GPU), True),
}
"""Kinds of nodes in order of preference, and whether instances share them in halves."""
POLICIES = (*BASELINES, *ELASTIC)

Pair = tuple[ShapeKey, HardwareKey]


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy, ready to be simulated."""

    minds: Minds
    nodes: tuple[NodeSpec, ...]
    profiles: tuple[Profile, ...]
    physics: Physics


@dataclass(frozen=True, slots=True)
class Field:
    """What is the same for all policies."""

    specs: Sequence[ModelSpec]
    nodes: tuple[NodeSpec, ...]
    published: tuple[PublishedProfile, ...]
    assumptions: Assumptions
    noise: float = 0.0

    def pairs(self) -> list[tuple[ModelShape, NodeSpec, PublishedProfile]]:
        """Every shape on every hardware, with one node of it and what was measured there."""
        shapes = {spec.shape.key: (spec.name.partition("-")[0], spec.shape) for spec in self.specs}
        hardware = {node.hardware_key: node for node in self.nodes}
        return [
            (shape, node, find(self.published, SIZES[size].published_as, node.hardware_key))
            for node in hardware.values()
            for size, shape in shapes.values()
        ]

    def load_s(self, shape: ModelShape, node: NodeSpec) -> float:
        """How long the weights take to their node."""
        gpu = node.kind is NodeKind.GPU
        return shape.weight_bytes / self.assumptions.gpu_load_bytes_per_s if gpu else self.assumptions.cpu_load_s

    def held_bytes(self, shape: ModelShape, node: NodeSpec, *, worker: bool) -> int:
        """What an instance holds beside KV."""
        extra_gib = self.assumptions.worker_gib if worker and node.kind is NodeKind.GPU else 0.0
        return shape.weight_bytes + int(extra_gib * GIB)

    def physics(self) -> Physics:
        """What no profile says of the machines."""
        assumptions = self.assumptions
        return Physics(
            noise=self.noise,
            loading_slowdown=1.0,
            kv_beside=assumptions.kv_resize_beside,
            kv_grow_s=0.0,
            kv_shrink_s=0.0,
            kv_copy_s_per_byte=assumptions.kv_copy_s_per_byte,
            kv_allocate_s_per_byte=assumptions.kv_allocate_s_per_byte,
            kv_shrink_s_per_byte=1 / assumptions.kv_shrink_bytes_per_s,
            unload_s=assumptions.unload_s,
        )


def contender(policy: str, ablations: Sequence[Ablation], field: Field) -> Contender:
    """Make a policy ready. Raises OperatorError for a name that there is not, or an ablation of a baseline."""
    if policy in BASELINES:
        if ablations:
            raise OperatorError(f"--without takes ideas from {' or '.join(ELASTIC)}, not from {policy}")
        return _baseline(policy, field)
    if policy not in ELASTIC:
        raise OperatorError(f"no policy {policy}; there are: {', '.join(POLICIES)}")
    policies = elastic(policy, field.assumptions, ablations)
    nodes = tuple(_without_runtime(node, field) for node in field.nodes) if policies.runtime_per_node else field.nodes
    profiles = tuple(
        as_profile(
            measured, shape.key, node.hardware_key, load_s=field.load_s(shape, node),
            held_bytes=field.held_bytes(shape, node, worker=not policies.runtime_per_node),
        )
        for shape, node, measured in field.pairs()
    )  # fmt: skip
    return Contender(policies.minds(), nodes, profiles, field.physics())


def _without_runtime(node: NodeSpec, field: Field) -> NodeSpec:
    """Take the memory of one worker from a GPU, whatever it will host."""
    if node.kind is not NodeKind.GPU:
        return node
    return msgspec.structs.replace(node, memory_bytes=node.memory_bytes - int(field.assumptions.worker_gib * GIB))


def _baseline(policy: str, field: Field) -> Contender:
    """Make an exclusive mind ready: its KV pools are as large as their share of the node from their load on.

    Where growing costs an allocation, that whole pool is allocated with the load; else it costs nothing.
    """
    kinds, shared = BASELINES[policy]
    nodes = tuple(node for node in field.nodes if node.kind in kinds)
    limits: dict[Pair, int] = {}
    widths: dict[Pair, int] = {}
    reserved: dict[Pair, int] = {}
    profiles: list[Profile] = []
    free = msgspec.structs.replace(field.physics(), kv_copy_s_per_byte=0.0, kv_allocate_s_per_byte=0.0)
    for shape, node, measured in field.pairs():
        key = (shape.key, node.hardware_key)
        held_bytes = field.held_bytes(shape, node, worker=True)
        half = shared and _fits_half(measured)
        widths[key] = 1 if half else HALVES
        limits[key] = (measured.sllm_share_concurrency if shared else measured.sllm_concurrency) or 0
        reserved[key] = node.memory_bytes * widths[key] // HALVES - held_bytes
        allocates = field.assumptions.kv_growth is KvGrowth.ALLOCATE and node.kind is NodeKind.GPU
        pool_s = reserved[key] / field.assumptions.kv_allocate_bytes_per_s if allocates else 0.0
        load_s = field.load_s(shape, node) + pool_s
        profiles.append(as_profile(measured, shape.key, node.hardware_key, load_s=load_s, held_bytes=held_bytes))
    rule = BaselinePolicy(limits, widths, kinds, field.assumptions.keep_alive_s)
    node_minds = slinfer(field.assumptions).minds().node
    minds = Minds(host=lambda specs: ExclusiveMind(specs, rule), node=node_minds)
    return Contender(minds, nodes, tuple(profiles), msgspec.structs.replace(free, kv_reserved_bytes=reserved))


def _fits_half(measured: PublishedProfile) -> bool:
    """Whether an instance gets half a node: all but 13B on CPU, whose limit is then that of a whole node (§IX-A)."""
    return measured.sllm_share_concurrency != measured.sllm_concurrency
