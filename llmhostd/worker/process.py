"""How does this process behave towards its machine and its parent?"""

import ctypes
import os
import signal
from collections.abc import Iterable

_PR_SET_PDEATHSIG = 1


def bind_to_cores(cores: Iterable[int]) -> None:
    """Compute on the node's cores only. Before the engine starts its threads: they inherit it."""
    os.sched_setaffinity(0, cores)


def die_with_parent(parent_pid: int) -> None:
    """Be killed when the daemon dies, even in the middle of an iteration that never ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise SystemExit("the daemon is gone already")


def leave_signals_to_parent() -> None:
    """A terminal and systemd signal the whole group; how work ends is the daemon's to say, by frames."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
