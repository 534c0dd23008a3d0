"""What nodes does this box have, what of it is no node, and why?"""

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from llmhostd.config import NodeSettings
from llmhostd.daemon.node_cores import cores_of_nodes, sharing_caveat
from llmhostd.daemon.node_defaults import ExcludedDevice, Machine, default_nodes, left_out, look_at
from llmhostd.daemon.node_memory import device_memory, host_memory, memory_pools
from llmhostd.devices.acceleration import shortfall
from llmhostd.devices.budget import MemoryBudget, spell
from llmhostd.devices.domains import DevicePolicy
from llmhostd.devices.gpus import GpuFacts, GpusFound, choose_gpu, gpu_hardware_key
from llmhostd.devices.probe import hardware_key, probe_cpu, spell_cores
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.hardware import MemoryPool, NodeKind, NodeSpec
from llmhostd.domain.ids import HardwareKey, NodeId
from llmhostd.domain.words import Word
from llmhostd.engines.discovery import check_node, computes_adapters, find_engine
from llmhostd.memory.machine_share import MachineMemoryPolicy

BF16_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")
_ROOT = Path("/")

log = logging.getLogger(__name__)


class NodeLayout(Word):
    """What the configuration means on this machine."""

    nodes: tuple[NodeSpec, ...]
    budgets: tuple[MemoryBudget, ...]
    """Of each node, where its `memory_bytes` come from."""
    excluded: tuple[ExcludedDevice, ...]
    """What could compute here and does not."""
    gpu_state: str
    """What NVML said."""


def node_layout(
    settings: Sequence[NodeSettings] = (),
    devices: DevicePolicy | None = None,
    memory: MachineMemoryPolicy | None = None,
    machine: Machine | None = None,
) -> NodeLayout:
    """Resolve the configuration on a machine, this one if none is given. Raises OperatorError naming the setting."""
    devices, memory = devices or DevicePolicy(), memory or MachineMemoryPolicy()
    machine = machine or look_at()
    wanted, excluded = (list(settings), []) if settings else default_nodes(machine, devices)
    cores = cores_of_nodes(wanted, machine.allowed)
    cards = _cards(wanted, machine.gpus)
    pools = memory_pools(wanted, cores, machine)
    nodes, budgets = [], []
    for index, one in enumerate(wanted):
        where = f"nodes[{index}]"
        if one.kind is NodeKind.GPU:
            budget = device_memory(one, cards[index], f"{where}.memory", memory)
            node = _gpu_node(one, cores[index], cards[index], budget, where)
        else:
            budget = host_memory(pools[index], memory, machine)
            said = _caveats(index, cores, machine, devices, budget)
            node = _cpu_node(one, cores[index], pools[index], budget, machine, said, where)
        _check(node, where)
        nodes.append(msgspec.structs.replace(node, adapters=computes_adapters(node.engine)))
        budgets.append(budget)
    if settings:
        excluded = left_out(machine, cores, cards)
    return NodeLayout(
        nodes=tuple(nodes), budgets=tuple(budgets), excluded=tuple(excluded), gpu_state=machine.gpus.state
    )


def say_nodes(layout: NodeLayout) -> None:
    """Log what computes here, and, louder, what does not."""
    for node, budget in zip(layout.nodes, layout.budgets, strict=True):
        log.info("node %s: %s on cores %s, %s: %s", node.id, node.engine, spell_cores(node.cores), spell(budget.bytes),
                 budget.because)  # fmt: skip
        for caveat in node.caveats:
            log.warning("node %s: %s", node.id, caveat)
    for one in layout.excluded:
        log.warning("%s: left out: %s", one.device, one.because)


def has_bf16(root: Path = _ROOT) -> bool:
    """Whether the CPU computes bf16 in hardware."""
    return any(flag in BF16_FLAGS for flag in probe_cpu(root).flags)


def _cpu_node(
    one: NodeSettings, cores: tuple[int, ...], pools: tuple[MemoryPool, ...], budget: MemoryBudget, machine: Machine,
    caveats: tuple[str, ...], where: str,
) -> NodeSpec:  # fmt: skip
    facts = probe_cpu(machine.root, cores)
    threads = facts.threads_of(machine.cpu)
    domains = machine.domains_of(cores)
    return NodeSpec(
        id=NodeId(one.id),
        engine=one.engine,
        hardware_key=_profile_key(one.profile, f"{where}.profile") if one.profile else hardware_key(facts, threads),
        cores=cores,
        threads=threads,
        memory_bytes=budget.bytes,
        memory_pools=pools,
        # Whose cores lie in all domains takes memory wherever there is some.
        numa_domains=domains[0].numa if len(domains) == 1 else (),
        profile=one.profile,
        caveats=caveats,
    )


def _gpu_node(
    one: NodeSettings, cores: tuple[int, ...], card: GpuFacts | None, budget: MemoryBudget, where: str
) -> NodeSpec:
    return NodeSpec(
        id=NodeId(one.id),
        engine=one.engine,
        hardware_key=gpu_hardware_key(card) if card else _profile_key(one.profile, f"{where}.profile"),
        cores=cores,
        threads=1,
        memory_bytes=budget.bytes,
        kind=NodeKind.GPU,
        device=card.uuid if card else "",
        profile=one.profile,
    )


def _profile_key(profile: str, where: str) -> HardwareKey:
    """Whatever the file says is another hardware as soon as it says something else."""
    if not profile.startswith("/"):
        raise OperatorError(f"{where}: is {profile!r}; expected the absolute path of a profile")
    try:
        digest = hashlib.blake2b(Path(profile).read_bytes(), digest_size=4).hexdigest()
    except OSError as error:
        raise OperatorError(f"{where}: {profile} cannot be read: {error.strerror}") from error
    return HardwareKey(f"profile/{Path(profile).stem}/{digest}")


def _cards(wanted: Sequence[NodeSettings], found: GpusFound) -> list[GpuFacts | None]:
    """Which GPU each GPU node is; none for one that takes its times from a profile."""
    cards: list[GpuFacts | None] = []
    for index, one in enumerate(wanted):
        where = f"nodes[{index}].device"
        card = None
        if one.device and one.kind is NodeKind.CPU:
            raise OperatorError(f"{where}: is {one.device!r}; only nodes of kind `gpu` are a device")
        if one.kind is NodeKind.GPU and (one.device or not one.profile):
            free = next((gpu for gpu in found.gpus if gpu not in cards), None)
            card = choose_gpu(one.device or str(free.index if free else ""), found, where)
            if card in cards:
                raise OperatorError(f"{where}: {card.name} {card.uuid} is another node's already")
        cards.append(card)
    return cards


def _caveats(
    index: int, cores: Sequence[tuple[int, ...]], machine: Machine, devices: DevicePolicy, budget: MemoryBudget
) -> tuple[str, ...]:
    """What is slow about a CPU node, whatever engine runs on it."""
    domains = machine.domains_of(cores[index])
    others = [share for place, share in enumerate(cores) if place != index]
    lacks = shortfall(machine.acceleration, devices.require_matrix_acceleration)
    said = (
        f"{lacks}; it serves because there is nothing else, or because [[nodes]] name it" if lacks else "",
        f"its cores lie in {len(domains)} NUMA domains: give each domain a node of its own" if len(domains) > 1 else "",
        sharing_caveat(cores[index], others, machine.root),
        f"there is no memory for models: {budget.because}" if not budget.bytes else "",
    )
    return tuple(one for one in said if one)


def _check(node: NodeSpec, where: str) -> None:
    """Let the engine say at once what it would say when its worker starts."""
    try:
        find_engine(node.engine)
    except OperatorError as error:
        raise OperatorError(f"{where}.engine: {error}") from error
    try:
        check_node(node)
    except OperatorError as error:
        raise OperatorError(f"{where}.{error}") from error
