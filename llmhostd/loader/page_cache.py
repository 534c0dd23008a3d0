"""How much of a checkpoint lies in host memory already, and how does it get there, or out?

On a CPU node the page cache is the host-memory tier: shared by all workers, used in place, and given up by the system
the moment that anybody needs the memory.
"""

import ctypes
import errno
import os
from pathlib import Path

from llmhostd.domain.errors import CheckpointError
from llmhostd.domain.start import TierBytes
from llmhostd.loader.store_index import ARRIVING_FILE, DATA_FILE, arrives, is_store, read_remote

_libc = ctypes.CDLL(None, use_errno=True)
_CACHESTAT = 451
"""Linux 6.5; the same number on every architecture. It counts a file's pages without touching or mapping any."""
_MADV_POPULATE_READ = 22
"""Linux 5.14: fault in, reading from the file. Where it is unknown, whoever touches the pages does, more slowly."""
_BLOCK_BYTES = 512
"""Unit in which a file system counts what a file takes, holes left out."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Counts(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recent"))


def where_weights_lie(checkpoint: Path) -> TierBytes | None:
    """Say how much of a checkpoint's weights is in the page cache, on the disk, and still behind the network.

    None: this system does not say, or not of files of another owner; or there are no such files.
    """
    memory_bytes = disk_bytes = total_bytes = 0
    arriving = arrives(checkpoint)
    try:
        if arriving:
            remote = read_remote(checkpoint)
            total_bytes = remote.data_bytes if remote else 0
        for file in weight_files(checkpoint):
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                status = os.fstat(descriptor)
                size = min(status.st_size, _BLOCK_BYTES * status.st_blocks) if arriving else status.st_size
                cached_bytes = min(_cached_bytes(descriptor), size)
                memory_bytes += cached_bytes
                disk_bytes += size - cached_bytes
            finally:
                os.close(descriptor)
    except (OSError, CheckpointError):
        return None
    left_bytes = max(total_bytes - memory_bytes - disk_bytes, 0)
    lies = TierBytes(memory_bytes=memory_bytes, disk_bytes=disk_bytes, remote_bytes=left_bytes)
    return lies if lies.total_bytes else None


def drop(checkpoint: Path) -> None:
    """Let the system forget what it keeps of a checkpoint's weights, but for what somebody has mapped."""
    for file in weight_files(checkpoint):
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def populate(address: int, size: int) -> bool:
    """Bring mapped bytes into memory. False: touching them would be a SIGBUS, which nobody survives."""
    failed = _libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), _MADV_POPULATE_READ)
    return not failed or ctypes.get_errno() != errno.EFAULT


def weight_files(checkpoint: Path) -> list[Path]:
    """Name the files that hold a checkpoint's weights, as far as they are here."""
    if not is_store(checkpoint):
        return sorted(checkpoint.glob("*.safetensors"))
    if arrives(checkpoint):
        return [one for one in (checkpoint / ARRIVING_FILE,) if one.exists()]
    return [checkpoint / DATA_FILE]


def _cached_bytes(descriptor: int) -> int:
    """Raises OSError."""
    counts = _Counts()
    whole = _Range(0, 0)
    if _libc.syscall(_CACHESTAT, descriptor, ctypes.byref(whole), ctypes.byref(counts), 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(counts.cached) * _PAGE_BYTES
