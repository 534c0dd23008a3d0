"""Does a node's budget follow the machine, its control groups and its neighbours?"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_probe import GROUP, write

from llmhostd.devices.budget import (
    BudgetWatch,
    MemoryHolder,
    domain_available_bytes,
    domain_total_bytes,
    node_budget,
    worker_holdings,
)
from llmhostd.domain.hardware import MemoryClaim, MemoryPool, NodeSpec
from llmhostd.domain.ids import HardwareKey, NodeId
from llmhostd.memory.machine_share import MachineMemoryPolicy, considerable, shareable_bytes, split_memory

KB = 1024
GIB = 1 << 30
POLICY = MachineMemoryPolicy(reserve_share=0.1, least_reserve_bytes=GIB)
ALONE = (MemoryPool(claims=(MemoryClaim(weight=1),), mine=0),)
claims_of = st.lists(
    st.builds(MemoryClaim, weight=st.integers(1, 100), fixed_bytes=st.none() | st.integers(0, 1 << 40)), min_size=1
)


@given(total=st.integers(0, 1 << 42), claims=claims_of)
def test_nobody_gets_what_is_not_there(total: int, claims: list[MemoryClaim]) -> None:
    parts = split_memory(total, claims)
    fixed = [one.fixed_bytes for one in claims if one.fixed_bytes is not None]
    assert sum(parts) <= total
    if sum(fixed) <= total:
        assert [part for part, one in zip(parts, claims, strict=True) if one.fixed_bytes is not None] == fixed
    if len(fixed) < len(claims) or sum(fixed) > total:
        assert sum(parts) > total - len(claims), "all of it is given but for what rounding leaves"


def test_the_rest_goes_by_weight() -> None:
    claims = (MemoryClaim(weight=1, fixed_bytes=40), MemoryClaim(weight=3), MemoryClaim(weight=1))
    assert split_memory(80, claims) == (40, 30, 10)
    assert split_memory(20, claims) == (20, 0, 0)


def test_what_workers_hold_counts_as_theirs_and_the_reserve_grows_with_the_machine() -> None:
    assert shareable_bytes(4 * GIB, 6 * GIB, POLICY) == shareable_bytes(10 * GIB, 0, POLICY) == 9 * GIB
    assert shareable_bytes(20 * GIB, 20 * GIB, POLICY) == 36 * GIB
    assert shareable_bytes(GIB // 2, 0, POLICY) == 0


@pytest.mark.parametrize(("told", "now", "moved"), [(100, 101, False), (100, 97, True), (5, 0, True), (0, 0, False)])
def test_small_moves_are_not_worth_a_word(told: int, now: int, moved: bool) -> None:
    assert considerable(told, now, POLICY) is moved


def machine(root: Path, available_kb: int, **limits: str) -> Path:
    files = {f"{GROUP}/{name.replace('_', '.', 1)}": text for name, text in limits.items()}
    meminfo = f"MemTotal: 99999999 kB\nMemAvailable: {available_kb} kB\n"
    return write(root, {"proc/self/cgroup": "0::/\n", "proc/meminfo": meminfo, **files})


def spec(memory_bytes: int, pools: tuple[MemoryPool, ...]) -> NodeSpec:
    return NodeSpec(
        id=NodeId("cpu0"), engine="e", hardware_key=HardwareKey("k"), cores=(0,), memory_bytes=memory_bytes,
        memory_pools=pools,
    )  # fmt: skip


def test_a_watch_follows_a_limit_down_and_up_and_says_what_it_follows(tmp_path: Path) -> None:
    root = machine(tmp_path, 20 * GIB // KB, memory_max="max", memory_current="0")
    watch = BudgetWatch(spec(18 * GIB, ALONE), POLICY, daemon_pid=1, root=root)
    assert watch.moved(0.0) is None, "nothing moved"
    machine(tmp_path, 20 * GIB // KB, memory_max=str(8 * GIB), memory_current=str(2 * GIB))
    assert watch.moved(0.5) is None, "it is not time to look again"
    tight = watch.moved(1.0)
    assert tight is not None
    assert tight.bytes == 5 * GIB
    assert "the control group's limit of 8.0 GiB (/sys/fs/cgroup/memory.max) leaves 6.0 GiB" in tight.because
    assert watch.moved(2.0) is None
    machine(tmp_path, 20 * GIB // KB, memory_max="max", memory_high="max")
    wide = watch.moved(3.0)
    assert wide is not None
    assert (wide.bytes, "this machine leaves 20.0 GiB" in wide.because) == (18 * GIB, True)


def test_the_throttling_limit_binds_and_cache_can_be_dropped(tmp_path: Path) -> None:
    stat = f"anon 5\nactive_file {GIB}\ninactive_file {GIB}\n"
    root = machine(tmp_path, 50 * GIB // KB, memory_max=str(30 * GIB), memory_high=str(10 * GIB),
                   memory_current=str(6 * GIB), memory_stat=stat)  # fmt: skip
    budget = node_budget(ALONE, (), POLICY, root)
    assert (budget.bytes, "memory.high" in budget.because) == (5 * GIB, True)


def test_a_domain_bounds_who_lives_there(tmp_path: Path) -> None:
    root = machine(tmp_path, 40 * GIB // KB)
    rows = {"MemTotal": 20, "MemFree": 5, "Active(file)": 2, "Inactive(file)": 2, "SReclaimable": 1, "AnonPages": 9}
    meminfo = "".join(f"Node 1 {name}: {gib * GIB // KB} kB\n" for name, gib in rows.items())
    write(root, {"sys/devices/system/node/node1/meminfo": meminfo})
    assert (domain_available_bytes(1, root), domain_total_bytes(1, root)) == (10 * GIB, 20 * GIB)
    two = (MemoryClaim(weight=1), MemoryClaim(weight=1))
    pools = (
        MemoryPool(claims=two, mine=1),
        MemoryPool(claims=(MemoryClaim(weight=1),), mine=0, domain=1, cores=(2, 3)),
    )
    holders = (MemoryHolder(anonymous_bytes=8 * GIB, cores=(0, 1)), MemoryHolder(anonymous_bytes=2 * GIB, cores=(2,)))
    domain_first = node_budget(pools, holders, POLICY, root)
    assert (domain_first.bytes, "NUMA domain 1 leaves 10.0 GiB" in domain_first.because) == (
        12 * GIB - int(12 * GIB * 0.1),
        True,
    )
    machine(tmp_path, 4 * GIB // KB)
    assert node_budget(pools, holders, POLICY, root).bytes == (14 * GIB - int(14 * GIB * 0.1)) // 2


def test_a_node_whose_budget_is_a_number_of_its_own_never_moves(tmp_path: Path) -> None:
    assert BudgetWatch(spec(GIB, ()), POLICY, root=machine(tmp_path, 1)).moved(0.0) is None


def test_what_real_workers_hold_is_found_and_nothing_else() -> None:
    hold = "import sys; held = bytearray(b'x' * (64 << 20)); print(flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    worker = subprocess.Popen([sys.executable, "-c", hold, "llmhostd.worker"], **pipes)
    other = subprocess.Popen([sys.executable, "-c", hold, "somebody"], **pipes)
    try:
        for one in (worker, other):
            assert one.stdout is not None
            one.stdout.readline()
        (held,) = worker_holdings(os.getpid())
        assert 64 << 20 <= held.anonymous_bytes < 128 << 20
        assert set(held.cores) == os.sched_getaffinity(0)
    finally:
        for one in (worker, other):
            one.communicate(b"")
    assert worker_holdings(os.getpid()) == []
