"""How do many simulations run beside each other, and end when nobody waits for them any more?"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import InvalidStateError, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier

_CTRL_C = {signal.SIGINT}


@contextmanager
def simulating(processes: int | None) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of so many processes; None: as there are cores. Interrupted, it drops what it has not finished."""
    count = processes or len(os.sched_getaffinity(0))
    # Spawned: what the parent has open and running is none of the children's business.
    context = multiprocessing.get_context("spawn")
    begun = context.Barrier(count)
    with ProcessPoolExecutor(count, mp_context=context, initializer=_end_at_ctrl_c, initargs=(begun,)) as pool:
        _begin(pool, count)
        try:
            yield pool
        except BaseException:
            threading.excepthook = _but_cancelled
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def _but_cancelled(failed: threading.ExceptHookArgs) -> None:
    """Say nothing of what is both cancelled and lost with its process: a pool of Python 3.11 fails over that."""
    if failed.exc_type is not InvalidStateError:
        threading.__excepthook__(failed)


def _begin(pool: ProcessPoolExecutor, count: int) -> None:
    """Start all processes, with Ctrl-C held back until they can end at it without a word.

    A pool starts another one only while none is idle: none of them is before all have begun.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _CTRL_C)
    try:
        for _ in range(count):
            pool.submit(os.getpid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_at_ctrl_c(begun: Barrier) -> None:
    """End the process, and not only what it computes just now, after which it would take the next."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _CTRL_C)
    begun.wait()
