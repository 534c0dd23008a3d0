"""Which nodes has a box that nobody wrote `[[nodes]]` for? It is split by what it is."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmhostd.config import NodeSettings
from llmhostd.devices.acceleration import Acceleration, acceleration_of, shortfall
from llmhostd.devices.domains import CpuDomain, DevicePolicy, cpu_domains, split_cpus
from llmhostd.devices.gpus import GpuFacts, GpusFound, probe_gpus
from llmhostd.devices.probe import ROOT, CpuFacts, probe_cpu, spell_cores
from llmhostd.domain.errors import OperatorError
from llmhostd.domain.hardware import NodeKind
from llmhostd.domain.words import Word
from llmhostd.engines.discovery import engine_names, kinds_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Machine:
    """What there is, before anything is decided."""

    root: Path
    cpu: CpuFacts
    acceleration: Acceleration
    domains: tuple[CpuDomain, ...]
    """NUMA domains with cores that we may use."""
    gpus: GpusFound

    @property
    def allowed(self) -> tuple[int, ...]:
        """Logical cores that we may use."""
        return self.cpu.cores

    def domains_of(self, cores: Sequence[int]) -> tuple[CpuDomain, ...]:
        """Return the domains in which these cores lie."""
        return tuple(domain for domain in self.domains if set(domain.cores) & set(cores))


class ExcludedDevice(Word):
    """Something that could compute here and does not."""

    device: str
    because: str


def look_at(root: Path = ROOT, cores: tuple[int, ...] | None = None, gpus: GpusFound | None = None) -> Machine:
    """Probe the machine below `root`: all of it, or some cores. `gpus`: what NVML said; it is asked if not given."""
    cpu = probe_cpu(root, cores)
    return Machine(root, cpu, acceleration_of(cpu.flags), cpu_domains(cpu.cores, root), gpus or probe_gpus())


def default_nodes(machine: Machine, policy: DevicePolicy) -> tuple[list[NodeSettings], list[ExcludedDevice]]:
    """One node per CPU domain and per GPU that an installed engine drives; and what is left out."""
    gpus, excluded = _gpu_nodes(machine.gpus.gpus)
    cpus, without_memory = _cpu_nodes(split_cpus(machine.domains, policy.cpu_nodes, machine.root))
    excluded += without_memory
    lacks = shortfall(machine.acceleration, policy.require_matrix_acceleration)
    # A box that could only refuse everybody would help nobody: its CPUs serve, and say how badly.
    if lacks and gpus:
        excluded += [ExcludedDevice(device=f"CPU cores {one.cores}", because=lacks) for one in cpus]
        return gpus, excluded
    return cpus + gpus, excluded


def left_out(
    machine: Machine, cores: Sequence[tuple[int, ...]], cards: Sequence[GpuFacts | None]
) -> list[ExcludedDevice]:
    """What configured nodes leave without one."""
    taken = {core for share in cores for core in share}
    rest = [core for core in machine.allowed if core not in taken]
    used = {card.uuid for card in cards if card}
    excluded = [_excluded_gpu(gpu, "no [[nodes]] name it") for gpu in machine.gpus.gpus if gpu.uuid not in used]
    if rest:
        excluded.append(ExcludedDevice(device=f"CPU cores {spell_cores(rest)}", because="no [[nodes]] name them"))
    return excluded


def _cpu_nodes(domains: Sequence[CpuDomain]) -> tuple[list[NodeSettings], list[ExcludedDevice]]:
    empty = [one for one in domains if not one.memory_bytes and len(domains) > 1]
    excluded = [
        ExcludedDevice(device=f"CPU cores {spell_cores(one.cores)}", because=f"{one.name} has no memory of its own")
        for one in empty
    ]
    kept = [one for one in domains if one not in empty]
    return [NodeSettings(id=f"cpu{n}", cores=spell_cores(one.cores)) for n, one in enumerate(kept)], excluded


def _gpu_nodes(gpus: Sequence[GpuFacts]) -> tuple[list[NodeSettings], list[ExcludedDevice]]:
    engine = next((name for name in engine_names() if gpus and _drives_gpus(name)), None)
    if engine is None:
        return [], [_excluded_gpu(gpu, "no installed engine drives GPUs") for gpu in gpus]
    nodes = [
        NodeSettings(id=f"gpu{n}", kind=NodeKind.GPU, engine=engine, device=gpu.uuid)
        for n, gpu in enumerate(one for one in gpus if not one.partitioned)
    ]
    return nodes, [_excluded_gpu(gpu, "it is partitioned (MIG)") for gpu in gpus if gpu.partitioned]


def _drives_gpus(engine: str) -> bool:
    """A plugin that is broken and that nobody named must not keep the others from serving."""
    try:
        return NodeKind.GPU in kinds_of(engine)
    except OperatorError as error:
        log.warning("%s", error)
        return False


def _excluded_gpu(gpu: GpuFacts, because: str) -> ExcludedDevice:
    return ExcludedDevice(device=f"GPU {gpu.index} ({gpu.name})", because=because)
