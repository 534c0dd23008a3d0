"""Machines as their kernels describe them: what of /proc and /sys the daemon reads, made small."""

from pathlib import Path

GIB = 1 << 30
KB = 1024

SAPPHIRE_RAPIDS = """vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R) Gold 6462C CPU @ 3.30GHz
flags\t\t: fpu sse2 avx2 f16c avx512f avx512_vnni avx512_bf16 amx_bf16 amx_tile amx_int8
"""
ICE_LAKE = """vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 106
model name\t: Intel(R) Xeon(R) Platinum 8369B CPU @ 2.70GHz
flags\t\t: fpu sse2 avx2 f16c avx512f avx512_vnni
"""
BROADWELL = """vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 79
model name\t: Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz
flags\t\t: fpu sse2 avx2 f16c
"""
TURIN = """vendor_id\t: AuthenticAMD
cpu family\t: 26
model\t\t: 2
model name\t: AMD EPYC 9355 32-Core Processor
flags\t\t: fpu sse2 avx2 f16c avx512f avx512_vnni avx512_bf16 avx_vnni
"""
GRAVITON3 = """BogoMIPS\t: 2100.00
Features\t: fp asimd asimddp sve bf16 i8mm
CPU implementer\t: 0x41
CPU part\t: 0xd40
"""
CORTEX_A72 = """BogoMIPS\t: 108.00
Features\t: fp asimd evtstrm crc32 cpuid
CPU implementer\t: 0x41
CPU part\t: 0xd08
"""


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def record(
    root: Path,
    cpu: str,
    domains: list[tuple[str, float]],
    *,
    sockets: dict[int, int] | None = None,
    siblings: dict[int, str] | None = None,
    available_gib: float | None = None,
    groups: dict[str, str] | None = None,
) -> Path:
    """`domains`: (cores as the kernel lists them, GiB of memory, all of it free) of each NUMA domain."""
    total = sum(gib for _, gib in domains)
    available = total if available_gib is None else available_gib
    files = {
        "proc/cpuinfo": f"processor\t: 0\n{cpu}\n",
        "proc/meminfo": f"MemTotal: {total * GIB / KB:.0f} kB\nMemAvailable: {available * GIB / KB:.0f} kB\n",
        "proc/self/cgroup": "0::/\n",
    }
    for number, (cores, gib) in enumerate(domains):
        node = f"sys/devices/system/node/node{number}"
        kb = f"{gib * GIB / KB:.0f} kB"
        files[f"{node}/cpulist"] = f"{cores}\n"
        files[f"{node}/meminfo"] = f"Node {number} MemTotal: {kb}\nNode {number} MemFree: {kb}\n"
    for core, socket in (sockets or {}).items():
        files[f"sys/devices/system/cpu/cpu{core}/topology/physical_package_id"] = f"{socket}\n"
    for core, listed in (siblings or {}).items():
        files[f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"] = f"{listed}\n"
    files |= {f"sys/fs/cgroup/{name}": text for name, text in (groups or {}).items()}
    write(root, files)
    return root
