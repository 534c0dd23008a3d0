"""In which precisions does this CPU compute, and keep keys and values? Answered without importing OpenVINO."""

from collections.abc import Collection, Mapping
from pathlib import Path

from llmhostd.domain.model import ComputePrecision, KvPrecision

_CPUINFO = Path("/proc/cpuinfo")

KV_CHOICES: Mapping[ComputePrecision, tuple[KvPrecision, ...]] = {
    ComputePrecision.F32: (KvPrecision.F32, KvPrecision.U8),
    ComputePrecision.BF16: (KvPrecision.BF16, KvPrecision.U8),
}
"""What the CPU plugin's attention takes under each precision of arithmetic; the most exact first."""


def cpu_flags() -> frozenset[str]:
    """Read the instruction sets of the first CPU."""
    for line in _CPUINFO.read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def hardware_precisions(flags: Collection[str]) -> tuple[ComputePrecision, ...]:
    """Precisions that the CPU multiplies natively, fastest first."""
    if "avx512_bf16" in flags or "amx_bf16" in flags:
        return (ComputePrecision.BF16, ComputePrecision.F32)
    return (ComputePrecision.F32,)
