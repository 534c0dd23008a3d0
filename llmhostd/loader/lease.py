"""How does what is read where it lies in a file outlive whoever writes to that file?

Weights are mapped, not copied. Whoever cuts such a file short would take them away from under those who compute
(SIGBUS, which no process survives), and whoever writes over it would let them compute other tokens. So every mapped
file is leased (fcntl(2), F_SETLEASE): whoever opens it for writing, or truncates it, is held by the kernel, which tells
us. It is copied to memory of our own, which takes the place of the mapping at the very same addresses; then the lease
is given back, and the writer goes on. Who computes notices nothing. All of it is copied, whatever an engine packed:
OpenVINO packs it once more, from where it lay, for an iteration of another size. Files that are deleted, or replaced
by name, disturb no mapping and break no lease.
"""

import ctypes
import errno
import fcntl
import logging
import os
import signal
import struct
import threading
import time
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path

from llmhostd.loader.file_memory import FileMemory
from llmhostd.loader.plain_file import opened

log = logging.getLogger(__name__)

_F_SETOWN_EX, _F_OWNER_TID = 15, 0
"""Linux: which thread is sent SIGIO. Python does not name them."""
_WRITTEN = "somebody has it open for writing"
_PATIENCE_S = 0.2
"""So long is it waited for whoever writes to a file that is to be loaded: he may be about to end."""
_RETRY_S = 0.5
"""So often what could not be leased because of that is tried again."""
_NOT_LEASED = {
    errno.EAGAIN: _WRITTEN,
    errno.EACCES: "it belongs to another user (CAP_LEASE would allow it)",
    errno.EINVAL: "its file system has no leases",
}


class LeasedFile:
    """One mapped file: it reads what was in it when it was leased, for as long as anybody has its bytes."""

    def __init__(self, file: Path, descriptor: int, memory: FileMemory, bytes_: ctypes.Array[ctypes.c_ubyte]) -> None:
        """`descriptor` is closed as soon as nobody needs it; -1 from then on."""
        self._file, self._descriptor = file, descriptor
        self._bytes = weakref.ref(bytes_)
        self.memory = memory

    def held(self) -> object:
        """What keeps it mapped as long as it is held; None: nobody has its bytes any more."""
        return self._bytes()

    def lease(self, thread_id: int) -> str:
        """Lease it; that thread is told of writers. Returns why it cannot be leased; if `_WRITTEN`, not yet."""
        return _lease(self._descriptor, thread_id)

    @property
    def broken(self) -> bool:
        """Whether somebody waits until the lease is given back."""
        return self._descriptor != -1 and fcntl.fcntl(self._descriptor, fcntl.F_GETLEASE) == fcntl.F_UNLCK

    def step_aside(self) -> None:
        """Copy it, and give the lease back."""
        began_s = time.monotonic()
        why_not = self._copied()
        why_not = self._given_back() or why_not
        took_s = time.monotonic() - began_s
        if why_not:
            log.error(
                "%s: is written to, and what was loaded from it could not be copied before (%s): whoever computes with"
                " it may fail, or end this process", self._file, why_not,
            )  # fmt: skip
            return
        log.warning(
            "%s: somebody writes to it while it is used where it lies; what was loaded from it goes on as it was, on a"
            " copy of %d bytes, for which the writer waited %.3f s", self._file, self.memory.copied_bytes, took_s,
        )  # fmt: skip

    def close(self) -> None:
        """Close the descriptor."""
        if self._descriptor != -1:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def _copied(self) -> str:
        """Copy it; returns why that cannot be done."""
        try:
            self.memory.copy(self._descriptor)
        except OSError as error:
            return str(error.strerror)
        return ""

    def _given_back(self) -> str:
        """Give it back; returns why that comes too late."""
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError:
            return "the kernel let the writer wait no longer: /proc/sys/fs/lease-break-time"
        finally:
            self.close()
        return ""


class _Watch:
    """A thread that lets files step aside. The kernel's signal goes to it alone: nobody else here sees it."""

    def __init__(self) -> None:
        self._leased: dict[int, LeasedFile] = {}
        """By address."""
        self._later: dict[int, LeasedFile] = {}
        """Those that somebody has open for writing."""
        self.listeners: list[Callable[[], None]] = []
        self._adding = threading.Lock()
        self._said: set[str] = set()
        self.thread_id = 0
        ready = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(ready,), name="leases", daemon=True)
        self._thread.start()
        ready.wait()

    def map(self, file: Path, descriptor: int, *, ours: bool) -> tuple[memoryview, LeasedFile]:
        """Map and lease a file, whose descriptor is ours from now on. Raises OSError.

        `ours`: if somebody writes to it, that is right.
        """
        until_s = time.monotonic() + (0.0 if ours else _PATIENCE_S)
        while True:
            # Leased before it is looked at: so it stays as long as it is found. Under a lock: or the signal might come
            # before it is known what it is about.
            with self._adding:
                why_not = _lease(descriptor, self.thread_id)
                if why_not != _WRITTEN or time.monotonic() >= until_s:
                    mapped, bytes_ = self._mapped(file, descriptor, why_not)
                    break
            time.sleep(_PATIENCE_S / 20)
        if why_not == _WRITTEN:
            signal.pthread_kill(self._thread.ident or 0, signal.SIGIO)
        if why_not and why_not not in self._said and not (ours and why_not == _WRITTEN):  # there may be dozens
            self._said.add(why_not)
            log.warning(
                "%s: cannot be leased: %s. Whoever cuts such a file short while it is used ends this process: replace"
                " it by name instead (said once)", file, why_not,
            )  # fmt: skip
        return memoryview(bytes_).cast("B").toreadonly(), mapped

    def _mapped(self, file: Path, descriptor: int, why_not: str) -> tuple[LeasedFile, ctypes.Array[ctypes.c_ubyte]]:
        """Map a file that is leased, unless `why_not` says otherwise. Raises OSError."""
        try:
            memory = FileMemory(descriptor)
        except OSError:
            os.close(descriptor)
            raise
        bytes_ = (ctypes.c_ubyte * memory.size).from_address(memory.address)
        mapped = LeasedFile(file, descriptor, memory, bytes_)
        weakref.finalize(bytes_, self._forget, mapped).atexit = False
        self._sort(mapped, why_not)
        return mapped, bytes_

    def _sort(self, mapped: LeasedFile, why_not: str) -> None:
        """Watch over what is leased, and keep in mind what may be later."""
        address = mapped.memory.address
        self._later.pop(address, None)
        if not why_not:
            self._leased[address] = mapped
        elif why_not == _WRITTEN:
            self._later[address] = mapped
        else:
            mapped.close()

    def _forget(self, mapped: LeasedFile) -> None:
        self._leased.pop(mapped.memory.address, None)
        self._later.pop(mapped.memory.address, None)
        mapped.memory.unmap()
        mapped.close()

    def _work(self, ready: threading.Event) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGIO})
        self.thread_id = threading.get_native_id()
        ready.set()
        while True:
            if self._later:
                signal.sigtimedwait({signal.SIGIO}, _RETRY_S)
            else:
                signal.sigwait({signal.SIGIO})
            self._look()
            self._try_again()

    def _look(self) -> None:
        with self._adding:
            leased = list(self._leased.values())
        for mapped in leased:
            held = mapped.held()
            if held is not None and mapped.broken:
                mapped.step_aside()
                for listener in self.listeners:
                    listener()

    def _try_again(self) -> None:
        with self._adding:
            for mapped in list(self._later.values()):
                held = mapped.held()
                if held is not None:
                    self._sort(mapped, mapped.lease(self.thread_id))


_starting = threading.Lock()
_watch = cache(_Watch)


def map_leased(file: Path, *, ours: bool = False) -> tuple[memoryview, LeasedFile]:
    """Map a file read-only, leased if that can be; else the log says why. Raises CheckpointError naming it.

    `ours`: somebody of us is still writing it; it is leased, as any that is open for writing, when that is over.
    """
    with opened(file) as stream:
        return _started().map(file, os.dup(stream.fileno()), ours=ours)


def why_not_leased(file: Path, user_id: int) -> str:
    """Why a process of that user could not lease a file, as far as it shows from here; empty: it could.

    Raises CheckpointError naming the file.
    """
    with opened(file) as stream:
        owner_id = os.fstat(stream.fileno()).st_uid
        if user_id not in (0, owner_id):
            return _NOT_LEASED[errno.EACCES]
        return _lease(stream.fileno(), _started().thread_id) if os.geteuid() in (0, owner_id) else ""


def hear_of_copies(listener: Callable[[], None]) -> None:
    """Let somebody be called after each copy, from another thread: this process holds more memory than before."""
    _started().listeners.append(listener)


def _started() -> _Watch:
    with _starting:
        return _watch()


def _lease(descriptor: int, thread_id: int) -> str:
    """Lease an open file; that thread is told of writers. Returns why it cannot be leased."""
    try:
        fcntl.fcntl(descriptor, _F_SETOWN_EX, struct.pack("ii", _F_OWNER_TID, thread_id))
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        return _NOT_LEASED.get(error.errno or 0, str(error.strerror))
    return ""
