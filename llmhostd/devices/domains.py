"""Which cores and which memory of this machine belong together?"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from llmhostd.devices.acceleration import MatrixAcceleration
from llmhostd.devices.budget import domain_total_bytes
from llmhostd.devices.probe import ROOT, memory_total_bytes, parse_cores
from llmhostd.domain.words import Word


class CpuSplit(StrEnum):
    """What one CPU node is."""

    NUMA = "numa"
    SOCKETS = "sockets"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class DevicePolicy:
    """Which devices of this box become nodes when no `[[nodes]]` say so."""

    cpu_nodes: CpuSplit = CpuSplit.NUMA
    """One node per NUMA domain (`numa`), per CPU socket (`sockets`), or one of all cores (`whole`). A node whose cores
    are far from its memory computes at the speed of the link between them."""
    require_matrix_acceleration: MatrixAcceleration = MatrixAcceleration.DOT_PRODUCTS
    """What a CPU must have to be a node (SLINFER §V). `tiles`: instructions that multiply matrices (AMX; SME, I8MM or
    BF16 on Arm), as the paper asks. `dot-products`: those, or dot products of short numbers (AVX-512 BF16, VNNI; SDOT
    on Arm). `none`: any. A CPU that lacks it is left out and doctor says so, unless it is all that there is to compute
    on, or `[[nodes]]` name its cores: then it serves, with a caveat."""


class CpuDomain(Word):
    """Cores with the memory near them."""

    name: str
    """For a person: `NUMA domain 0`."""
    numa: tuple[int, ...]
    """NUMA domains that it is made of; empty where the machine has one, or tells of none."""
    cores: tuple[int, ...]
    """Logical cores that we may use."""
    memory_bytes: int


def cpu_domains(allowed: Sequence[int], root: Path = ROOT) -> tuple[CpuDomain, ...]:
    """NUMA domains that have any of the `allowed` cores, in order; a machine that tells of none is one domain.

    One may have cores and no memory. Memory without cores (a CXL card, say) is no domain here.
    """
    paths = sorted((root / "sys/devices/system/node").glob("node[0-9]*"), key=lambda path: int(path.name[4:]))
    found = []
    for path in paths:
        number = int(path.name[4:])
        cores = tuple(core for core in parse_cores((path / "cpulist").read_text()) if core in allowed)
        if cores:
            found.append(
                CpuDomain(
                    name=f"NUMA domain {number}", numa=(number,), cores=cores,
                    memory_bytes=domain_total_bytes(number, root),
                )
            )  # fmt: skip
    if len(found) > 1:
        return tuple(found)
    return (CpuDomain(name="all cores", numa=(), cores=tuple(allowed), memory_bytes=memory_total_bytes(root)),)


def split_cpus(domains: Sequence[CpuDomain], split: CpuSplit, root: Path = ROOT) -> tuple[CpuDomain, ...]:
    """Group NUMA domains as `split` says."""
    if split is CpuSplit.NUMA or len(domains) == 1:
        return tuple(domains)
    if split is CpuSplit.WHOLE:
        return (_join("all cores", domains),)
    sockets: dict[int, list[CpuDomain]] = {}
    for domain in domains:
        sockets.setdefault(_socket_of(domain.cores[0], root), []).append(domain)
    return tuple(_join(f"CPU socket {number}", sockets[number]) for number in sorted(sockets))


def _join(name: str, domains: Sequence[CpuDomain]) -> CpuDomain:
    if len(domains) == 1:
        return domains[0]
    return CpuDomain(
        name=name,
        numa=tuple(number for one in domains for number in one.numa),
        cores=tuple(sorted(core for one in domains for core in one.cores)),
        memory_bytes=sum(one.memory_bytes for one in domains),
    )


def _socket_of(core: int, root: Path) -> int:
    path = root / f"sys/devices/system/cpu/cpu{core}/topology/physical_package_id"
    return int(path.read_text()) if path.exists() else 0
