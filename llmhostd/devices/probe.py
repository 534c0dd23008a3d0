"""What is this CPU, and how much memory is there?

Everything is read below a root path, so that recorded machines can be probed like this one.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from llmhostd.devices.cgroup import cpu_quota_cores, memory_limits
from llmhostd.domain.ids import HardwareKey
from llmhostd.domain.words import Word

ROOT = Path("/")

DECISIVE_FLAGS = (
    "amx_fp16", "amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni", "avx_vnni", "avx512f", "avx2", "f16c",
    "sme", "sve", "i8mm", "bf16", "asimddp",
)  # fmt: skip
"""Instruction sets that decide how long an iteration takes, most telling first (x86, then Arm)."""


class CacheFacts(Word):
    """One kind of cache, as the first allowed core sees it."""

    level: int
    kind: str
    """`Data`, `Instruction` or `Unified`."""
    bytes: int
    shared_by: tuple[int, ...]
    """Logical cores in front of it."""


class CpuFacts(Word):
    """The CPU as far as this process may use it."""

    model_name: str
    family: str
    """Vendor's family and model numbers: virtual machines hide the name."""
    cores: tuple[int, ...]
    """Logical cores this process may run on."""
    physical_cores: int
    """Distinct physical cores among them."""
    flags: tuple[str, ...]
    """Those of `DECISIVE_FLAGS` that the CPU has."""
    numa_nodes: tuple[tuple[int, ...], ...]
    """Allowed logical cores of each NUMA node that has any."""
    caches: tuple[CacheFacts, ...]
    quota_cores: float | None
    """CPU seconds per second that the control group allows; None: no quota."""

    def threads_of(self, whole: "CpuFacts") -> int:
        """Threads that can compute at once: one per physical core, no more than its part of the quota of `whole`."""
        if whole.quota_cores is None:
            return max(1, self.physical_cores)
        part = int(whole.quota_cores * self.physical_cores / whole.physical_cores)
        return max(1, min(self.physical_cores, part))


def probe_cpu(root: Path = ROOT, cores: tuple[int, ...] | None = None) -> CpuFacts:
    """Read the CPU below `root`; `cores` defaults to this process's affinity."""
    allowed = tuple(sorted(os.sched_getaffinity(0))) if cores is None else cores
    info = _first_processor(root)
    present = set(info.get("flags", info.get("Features", "")).split())
    family = [info[key] for key in ("cpu family", "model", "CPU implementer", "CPU part") if key in info]
    return CpuFacts(
        model_name=info.get("model name", "unknown CPU"),
        family=".".join(family),
        cores=allowed,
        physical_cores=_physical_cores(root, allowed),
        flags=tuple(flag for flag in DECISIVE_FLAGS if flag in present),
        numa_nodes=_numa_nodes(root, allowed),
        caches=_caches(root, allowed[0]),
        quota_cores=cpu_quota_cores(root),
    )


def memory_available_bytes(root: Path = ROOT) -> int:
    """What can be allocated without swapping: MemAvailable, or less where a control group says so."""
    available = _meminfo(root, "MemAvailable")
    return min([available, *(limit.left_bytes for limit in memory_limits(root))])


def memory_total_bytes(root: Path = ROOT) -> int:
    """Physical memory of the machine."""
    return _meminfo(root, "MemTotal")


def hardware_key(facts: CpuFacts, threads: int) -> HardwareKey:
    """Equal for machines on which an iteration with that many threads takes the same time (SLINFER §VI-B)."""
    name = re.sub(r"\((r|tm)\)|@.*|\bcpu\b|\bprocessor\b", " ", facts.model_name.lower())
    slug = "-".join(re.findall(r"[a-z0-9.]+", f"{name} {facts.family}"))
    return HardwareKey(f"{slug}/{'+'.join(facts.flags) or 'baseline'}/{threads}t")


def parse_cores(text: str) -> tuple[int, ...]:
    """`0-3,8` as the kernel writes lists of cores."""
    cores: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores.extend(range(int(first), int(last or first) + 1))
    return tuple(cores)


def spell_cores(cores: Iterable[int]) -> str:
    """Write a list of cores as the kernel does: `0-3,8`."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def core_siblings(core: int, root: Path = ROOT) -> tuple[int, ...]:
    """Logical cores that share `core`'s physical one, itself included."""
    path = root / f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
    return parse_cores(path.read_text()) if path.exists() else (core,)


def _first_processor(root: Path) -> dict[str, str]:
    block = (root / "proc/cpuinfo").read_text().strip().split("\n\n", 1)[0]
    rows = (line.partition(":") for line in block.splitlines())
    return {key.strip(): value.strip() for key, _, value in rows}


def _physical_cores(root: Path, allowed: tuple[int, ...]) -> int:
    """Allowed cores that share a physical core count once; where the kernel does not say, each is its own."""
    return len({core_siblings(core, root) for core in allowed})


def _numa_nodes(root: Path, allowed: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    base = root / "sys/devices/system/node"
    paths = sorted(base.glob("node[0-9]*"), key=lambda path: int(path.name[4:]))
    nodes = (parse_cores((path / "cpulist").read_text()) for path in paths)
    shares = (tuple(core for core in node if core in allowed) for node in nodes)
    return tuple(share for share in shares if share) or (allowed,)


def _caches(root: Path, core: int) -> tuple[CacheFacts, ...]:
    base = root / f"sys/devices/system/cpu/cpu{core}/cache"
    return tuple(
        CacheFacts(
            level=int((path / "level").read_text()),
            kind=(path / "type").read_text().strip(),
            bytes=_size_bytes((path / "size").read_text().strip()),
            shared_by=parse_cores((path / "shared_cpu_list").read_text()),
        )
        for path in sorted(base.glob("index[0-9]*"))
    )


def _size_bytes(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def _meminfo(root: Path, name: str) -> int:
    text = (root / "proc/meminfo").read_text()
    match = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0
