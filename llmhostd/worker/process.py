"""How does this process behave towards its machine and its parent?"""

import ctypes
import os
import platform
import signal
import threading
from collections.abc import Iterable, Sequence

_PR_SET_PDEATHSIG = 1

BUILDER_NICE = 10
"""A builder gets a tenth of what a thread gets that computes on the same core, and all of a core that nobody uses.

A 156M model that decodes on both cores beside a load of 1.1B was 3.0x slower (median gap) at 0, 1.9x at 5, 1.6x at 10,
little better beyond (1.5x at 19); the load took about as long (tests/bench/test_cold_start.py).
"""

_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
"""Number of the system call, which the C library does not wrap."""
_MPOL_DEFAULT, _MPOL_PREFERRED, _MPOL_PREFERRED_MANY = 0, 1, 5


def bind_to_cores(cores: Iterable[int]) -> None:
    """Compute on the node's cores only. Before the engine starts its threads: they inherit it."""
    os.sched_setaffinity(0, cores)


def prefer_memory_of(domains: Sequence[int]) -> str:
    """Take memory of these NUMA domains as long as they have any; none: as the kernel likes.

    Holds for this thread and those that it starts later. Preferred, not bound: the kernel kills whoever exhausts what
    it is bound to, beside gigabytes that are free elsewhere. Returns why it cannot be done; empty if it is.
    """
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return f"llmhostd does not know the system call on {platform.machine()}"
    mode = (_MPOL_PREFERRED if len(domains) == 1 else _MPOL_PREFERRED_MANY) if domains else _MPOL_DEFAULT
    bits = max(domains, default=0) + 1
    words = (ctypes.c_ulong * (bits // 64 + 1))()
    for domain in domains:
        words[domain // 64] |= 1 << domain % 64
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel counts one bit less than it is told.
    if libc.syscall(number, mode, words if domains else None, 64 * len(words) + 1 if domains else 0):
        return os.strerror(ctypes.get_errno())
    return ""


def give_way() -> None:
    """Let this thread have less of a core than one that computes. Threads that it starts inherit it.

    Engines compute in threads of whoever runs an iteration, so only builds are slower for it.
    """
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BUILDER_NICE)


def die_with_parent(parent_pid: int) -> None:
    """Be killed when the daemon dies, even in the middle of an iteration that never ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise SystemExit("the daemon is gone already")


def leave_signals_to_parent() -> None:
    """A terminal and systemd signal the whole group; how work ends is the daemon's to say, by frames."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
