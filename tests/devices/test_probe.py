"""Recorded and made-up machines, and this one."""

import os
from pathlib import Path

import pytest

from llmhostd.devices.probe import (
    CacheFacts,
    hardware_key,
    memory_available_bytes,
    memory_total_bytes,
    parse_cores,
    probe_cpu,
)

XEON = """processor\t: {n}
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R) Gold 6462C CPU @ 3.30GHz
flags\t\t: fpu sse2 avx2 f16c avx512f avx512_vnni avx512_bf16 amx_bf16 amx_tile amx_int8
"""

ARM = """processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd asimddp sve bf16
CPU implementer\t: 0x41
CPU part\t: 0xd40
"""


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def two_sockets_with_threads(root: Path) -> Path:
    """Two NUMA nodes of two physical cores with two hyper-threads: 0-1,4-5 and 2-3,6-7."""
    cpu = "sys/devices/system/cpu"
    files = {
        "proc/cpuinfo": "\n".join(XEON.format(n=n) for n in range(8)),
        "proc/meminfo": "MemTotal:       65536 kB\nMemFree:  100 kB\nMemAvailable:   40960 kB\n",
        "proc/self/cgroup": "0::/\n",
        "sys/devices/system/node/node0/cpulist": "0-1,4-5\n",
        "sys/devices/system/node/node1/cpulist": "2-3,6-7\n",
        f"{cpu}/cpu0/cache/index0/level": "1\n",
        f"{cpu}/cpu0/cache/index0/type": "Data\n",
        f"{cpu}/cpu0/cache/index0/size": "48K\n",
        f"{cpu}/cpu0/cache/index0/shared_cpu_list": "0,4\n",
        f"{cpu}/cpu0/cache/index3/level": "3\n",
        f"{cpu}/cpu0/cache/index3/type": "Unified\n",
        f"{cpu}/cpu0/cache/index3/size": "60M\n",
        f"{cpu}/cpu0/cache/index3/shared_cpu_list": "0-1,4-5\n",
    }
    for core in range(8):
        files[f"{cpu}/cpu{core}/topology/thread_siblings_list"] = f"{core % 4},{core % 4 + 4}\n"
    return write(root, files)


def test_hyper_threads_numa_and_caches_are_told_apart(tmp_path: Path) -> None:
    facts = probe_cpu(two_sockets_with_threads(tmp_path), cores=tuple(range(8)))
    assert (facts.physical_cores, facts.threads_of(facts)) == (4, 4)
    assert facts.numa_nodes == ((0, 1, 4, 5), (2, 3, 6, 7))
    assert facts.flags == ("amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni", "avx512f", "avx2", "f16c")
    assert facts.caches == (
        CacheFacts(level=1, kind="Data", bytes=48 << 10, shared_by=(0, 4)),
        CacheFacts(level=3, kind="Unified", bytes=60 << 20, shared_by=(0, 1, 4, 5)),
    )


def test_affinity_bounds_everything(tmp_path: Path) -> None:
    facts = probe_cpu(two_sockets_with_threads(tmp_path), cores=(0, 4))
    assert (facts.physical_cores, facts.numa_nodes) == (1, ((0, 4),))


def test_the_key_names_cpu_instructions_and_threads(tmp_path: Path) -> None:
    facts = probe_cpu(two_sockets_with_threads(tmp_path), cores=(0, 1))
    isa = "amx_bf16+amx_int8+avx512_bf16+avx512_vnni+avx512f+avx2+f16c"
    assert hardware_key(facts, 2) == f"intel-xeon-gold-6462c-6.143/{isa}/2t"
    assert hardware_key(facts, 2) != hardware_key(facts, 1)


def test_arm_is_read_too(tmp_path: Path) -> None:
    facts = probe_cpu(write(tmp_path, {"proc/cpuinfo": ARM, "proc/self/cgroup": ""}), cores=(0, 1))
    assert facts.flags == ("sve", "bf16", "asimddp")
    assert (facts.model_name, facts.family, facts.physical_cores) == ("unknown CPU", "0x41.0xd40", 2)
    assert hardware_key(facts, 2) == "unknown-0x41.0xd40/sve+bf16+asimddp/2t"


@pytest.mark.parametrize(("text", "cores"), [("", ()), ("3", (3,)), ("0-3,8,10-11\n", (0, 1, 2, 3, 8, 10, 11))])
def test_lists_of_cores(text: str, cores: tuple[int, ...]) -> None:
    assert parse_cores(text) == cores


GROUP = "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/app\n", f"{GROUP}/app/memory.max": "max"}, None),
        (
            {
                "proc/self/cgroup": "0::/slice/app\n",
                f"{GROUP}/slice/memory.max": "8000000",
                f"{GROUP}/slice/memory.current": "3000000",
                f"{GROUP}/slice/memory.stat": "anon 1\ninactive_file 500000\n",
                f"{GROUP}/slice/app/memory.max": "max",
            },
            5_500_000,
        ),
        (  # A container's own view of version 1: the path is the host's, the limit is at the mount.
            {
                "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n",
                f"{GROUP}/memory/memory.limit_in_bytes": "4000000",
                f"{GROUP}/memory/memory.usage_in_bytes": "1000000",
                f"{GROUP}/memory/memory.stat": "total_inactive_file 250000\n",
            },
            3_250_000,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/\n",
                f"{GROUP}/memory/memory.limit_in_bytes": "9223372036854771712",
            },
            None,
        ),
        (  # Over its limit already: nothing is left, not less than nothing.
            {
                "proc/self/cgroup": "0::/\n",
                f"{GROUP}/memory.max": "1000",
                f"{GROUP}/memory.current": "2000",
            },
            0,
        ),
    ],
)
def test_memory_is_what_the_tightest_limit_leaves(tmp_path: Path, files: dict[str, str], left: int | None) -> None:
    root = write(tmp_path, {"proc/meminfo": "MemTotal: 20000 kB\nMemAvailable:   10000 kB\n", **files})
    assert memory_available_bytes(root) == (10_000 * 1024 if left is None else left)


def test_a_quota_bounds_the_threads(tmp_path: Path) -> None:
    root = two_sockets_with_threads(tmp_path)
    write(
        root,
        {"proc/self/cgroup": "0::/app\n", f"{GROUP}/app/cpu.max": "250000 100000", f"{GROUP}/cpu.max": "max 100000"},
    )
    facts = probe_cpu(root, cores=tuple(range(8)))
    assert (facts.quota_cores, facts.threads_of(facts)) == (2.5, 2)


def test_a_version_1_quota_is_found_among_joined_controllers(tmp_path: Path) -> None:
    root = two_sockets_with_threads(tmp_path)
    v1 = {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"}
    write(root, {"proc/self/cgroup": "3:cpu,cpuacct:/x\n", **{f"{GROUP}/cpu/x/{k}": v for k, v in v1.items()}})
    facts = probe_cpu(root, cores=(0, 1))
    assert (facts.quota_cores, facts.threads_of(facts)) == (0.5, 1)


def test_this_machine_agrees_with_the_kernel() -> None:
    facts = probe_cpu()
    assert set(facts.cores) == os.sched_getaffinity(0)
    assert sorted(core for node in facts.numa_nodes for core in node) == sorted(facts.cores)
    assert (
        0 < memory_available_bytes() <= memory_total_bytes() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    )
