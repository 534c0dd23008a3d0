"""Which instance was in use when a worker died?

A page of memory that the daemon shares with its worker: the worker notes what it is about to load or compute, at the
price of one small copy per iteration, and the daemon reads it when nobody can be asked any more.
"""

import mmap
import os

from llmhostd.domain.ids import InstanceId

_SLOT_BYTES = 1024
_LOADING, _COMPUTING = 0, _SLOT_BYTES


class CrashNote:
    """Two slots: what is loading, what is computing. An empty slot begins with a zero byte."""

    def __init__(self, fd: int) -> None:
        """Map the shared memory behind `fd`; the descriptor stays the caller's."""
        self._memory = mmap.mmap(fd, 2 * _SLOT_BYTES)

    def loading(self, instance_id: InstanceId | None) -> None:
        """Note what the builder thread is about to load or rest; None when it is done."""
        self._write(_LOADING, instance_id)

    def computing(self, instance_id: InstanceId | None) -> None:
        """Note whose iteration is about to run; None when it is done."""
        self._write(_COMPUTING, instance_id)

    def suspect(self) -> InstanceId | None:
        """What was in use last. A load before an iteration: what computes has mostly computed before."""
        return self._read(_LOADING) or self._read(_COMPUTING)

    def _write(self, slot: int, instance_id: InstanceId | None) -> None:
        if instance_id is None:
            self._memory[slot] = 0
            return
        name = instance_id.encode()[: _SLOT_BYTES - 1]
        self._memory[slot : slot + len(name) + 1] = name + b"\0"

    def _read(self, slot: int) -> InstanceId | None:
        name = self._memory[slot : slot + _SLOT_BYTES].split(b"\0", 1)[0].decode(errors="replace")
        return InstanceId(name) if name else None

    def close(self) -> None:
        """Unmap."""
        self._memory.close()


def create_crash_note() -> tuple[CrashNote, int]:
    """Return a new, empty note and the descriptor to pass to the worker."""
    fd = os.memfd_create("llmhostd-crash-note")
    os.ftruncate(fd, 2 * _SLOT_BYTES)
    return CrashNote(fd), fd
