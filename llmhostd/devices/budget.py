"""How much may this node's instances hold together, now?

Read while the node runs: limits of control groups move, other programs come and go, memory is plugged in and out. The
arithmetic is `memory.machine_share`; here it gets its figures.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from llmhostd.devices.cgroup import memory_limits
from llmhostd.devices.probe import memory_available_bytes, parse_cores
from llmhostd.domain.hardware import MemoryPool, NodeSpec
from llmhostd.domain.words import Word
from llmhostd.memory.machine_share import MachineMemoryPolicy, considerable, shareable_bytes, split_memory

ROOT = Path("/")
WORKER_MODULE = b"llmhostd.worker"


class MemoryBudget(Word):
    """What one node's instances may hold together."""

    bytes: int
    because: str
    """What bounds it."""


class MemoryHolder(Word):
    """One worker: memory that comes back when its instances go."""

    anonymous_bytes: int
    """Beside file cache, which the kernel counts as available; what is locked of it, it does not."""
    cores: tuple[int, ...]
    """Where it is bound to."""


class BudgetWatch:
    """One node's budget as its worker follows it. Costs under a millisecond per look."""

    def __init__(
        self, spec: NodeSpec, policy: MachineMemoryPolicy, daemon_pid: int | None = None, root: Path = ROOT
    ) -> None:
        """Start from `spec.memory_bytes`. `daemon_pid`: whose children the workers are; this process's parent."""
        self._spec = spec
        self._policy = policy
        self._daemon_pid = os.getppid() if daemon_pid is None else daemon_pid
        self._root = root
        self._told_bytes = spec.memory_bytes
        self._looked_s = float("-inf")

    def moved(self, now: float) -> MemoryBudget | None:
        """Look, if it is time to; the new budget if it moved considerably since the last one that was returned.

        `now` in seconds of any clock that only goes forward.
        """
        if not self._spec.memory_pools or now - self._looked_s < self._policy.look_every_s:
            return None
        self._looked_s = now
        budget = node_budget(self._spec.memory_pools, worker_holdings(self._daemon_pid, self._root), self._policy,
                             self._root)  # fmt: skip
        if not considerable(self._told_bytes, budget.bytes, self._policy):
            return None
        self._told_bytes = budget.bytes
        return budget


def node_budget(
    pools: Sequence[MemoryPool], holders: Sequence[MemoryHolder], policy: MachineMemoryPolicy, root: Path = ROOT
) -> MemoryBudget:
    """Return the least that any of the node's pools grants it now. `holders`: all workers on this box."""
    return min((_grant(pool, holders, policy, root) for pool in pools), key=lambda one: one.bytes)


def room(domain: int | None, root: Path = ROOT) -> tuple[int, str]:
    """Return the bytes that can be had now without swapping, and what says so."""
    if domain is not None:
        return domain_available_bytes(domain, root), f"NUMA domain {domain}"
    available = memory_available_bytes(root)
    for limit in memory_limits(root):
        if limit.left_bytes <= available:
            return limit.left_bytes, f"the control group's limit of {spell(limit.limit_bytes)} ({limit.file})"
    return available, "this machine"


def domain_available_bytes(domain: int, root: Path = ROOT) -> int:
    """Free memory of a NUMA domain and file cache that the kernel would drop, as MemAvailable is for all of them."""
    rows = _domain_meminfo(domain, root)
    droppable = ("Active(file)", "Inactive(file)", "SReclaimable")
    return rows.get("MemFree", 0) + sum(rows.get(name, 0) for name in droppable)


def domain_total_bytes(domain: int, root: Path = ROOT) -> int:
    """Memory of a NUMA domain; 0 for one that only has cores."""
    return _domain_meminfo(domain, root).get("MemTotal", 0)


def worker_holdings(daemon_pid: int, root: Path = ROOT) -> list[MemoryHolder]:
    """What each worker of this daemon holds. One that has just ended holds nothing."""
    return [holder for pid in _worker_pids(root / "proc" / str(daemon_pid)) for holder in _holding(root, pid)]


def spell(size_bytes: int) -> str:
    """A size for a person."""
    return f"{size_bytes / 2**30:.1f} GiB"


def _grant(pool: MemoryPool, holders: Sequence[MemoryHolder], policy: MachineMemoryPolicy, root: Path) -> MemoryBudget:
    left_bytes, source = room(pool.domain, root)
    held_bytes = sum(one.anonymous_bytes for one in holders if _lives_in(one, pool))
    shareable = shareable_bytes(left_bytes, held_bytes, policy)
    granted = split_memory(shareable, pool.claims)[pool.mine]
    beside = f" beside {spell(held_bytes)} that workers hold" if held_bytes else ""
    because = f"{source} leaves {spell(left_bytes)}{beside}; {spell(shareable)} of it"
    others = len(pool.claims) - 1
    given = pool.claims[pool.mine].fixed_bytes
    if given is None:
        because += f" are shared with {others} other node(s)" if others else " are this node's"
    else:
        because += f" are for nodes, and {spell(given)} were given to this one by number"
    return MemoryBudget(bytes=granted, because=because)


def _lives_in(holder: MemoryHolder, pool: MemoryPool) -> bool:
    return pool.domain is None or (bool(holder.cores) and set(holder.cores) <= set(pool.cores))


def _domain_meminfo(domain: int, root: Path) -> dict[str, int]:
    rows = (line.split() for line in _text(root / f"sys/devices/system/node/node{domain}/meminfo").splitlines())
    return {row[2].rstrip(":"): int(row[3]) * 1024 for row in rows if len(row) >= 4}


def _worker_pids(daemon: Path) -> Iterator[str]:
    """Children of any thread of the daemon that are workers and not, say, its template process."""
    for children in sorted(daemon.glob("task/*/children")):
        for pid in _text(children).split():
            if WORKER_MODULE in _text(daemon.parent / pid / "cmdline").encode():
                yield pid


def _holding(root: Path, pid: str) -> Iterator[MemoryHolder]:
    rows = dict(line.partition(":")[::2] for line in _text(root / "proc" / pid / "status").splitlines())
    if "RssAnon" in rows:
        yield MemoryHolder(
            anonymous_bytes=1024 * (int(rows["RssAnon"].split()[0]) + int(rows.get("VmLck", "0 kB").split()[0])),
            cores=parse_cores(rows.get("Cpus_allowed_list", "")),
        )


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
