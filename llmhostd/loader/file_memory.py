"""How do a file's bytes lie at an address, and become memory of our own at the same one while others read them?

Python's own `mmap` keeps a descriptor for each mapping, and lets nothing else take its place.
"""

import ctypes
import errno
import mmap
import os
import threading
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = _libc.mremap.restype = ctypes.c_void_p
_FAILED = ctypes.c_void_p(-1).value
_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2
_PAGE = mmap.PAGESIZE
_PIECE_BYTES = 64 << 20
"""Copied at once: so much memory at most is taken twice."""


class FileMemory:
    """A file mapped read-only. Whoever makes it unmaps it."""

    def __init__(self, descriptor: int) -> None:
        """Map all of a file. Raises OSError, for an empty one, too."""
        self.size = os.fstat(descriptor).st_size
        self.address = _mapped(self.size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor)
        self.copied_bytes = 0
        """How much of it is memory of our own by now."""
        self._copying = threading.Lock()

    def read_ahead(self) -> None:
        """Let the system read it; returns at once."""
        self._advise(mmap.MADV_WILLNEED)

    def drop_pages(self) -> None:
        """Unmap the pages from this process; they come back from the file. What is copied stays."""
        if not self._copying.acquire(blocking=False):
            return
        try:
            if not self.copied_bytes:
                self._advise(mmap.MADV_DONTNEED)
        finally:
            self._copying.release()

    def copy(self, descriptor: int) -> None:
        """Become a copy, piece by piece. Raises OSError: it may be part of one then."""
        available_bytes = _available_bytes()
        if self.size > available_bytes:
            raise OSError(errno.ENOMEM, f"it takes {self.size:,} bytes of memory, {available_bytes:,} are available")
        with self._copying:
            for begin in range(0, self.size, _PIECE_BYTES):
                self._copy(descriptor, begin, min(_PIECE_BYTES, self.size - begin))

    def unmap(self) -> None:
        """Give it up; nobody may read it any more."""
        _libc.munmap(ctypes.c_void_p(self.address), ctypes.c_size_t(self.size))

    def _copy(self, descriptor: int, begin: int, size: int) -> None:
        room = -(-size // _PAGE) * _PAGE
        access, kind = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        copy = _mapped(room, access, kind, -1)
        try:
            _read(descriptor, begin, memoryview((ctypes.c_ubyte * size).from_address(copy)))
            where = ctypes.c_void_p(copy), ctypes.c_size_t(room), ctypes.c_size_t(room)
            place = ctypes.c_void_p(self.address + begin)
            # In one step: whoever touches a page meanwhile waits in the kernel.
            _checked(_libc.mremap(*where, _MREMAP_MAYMOVE | _MREMAP_FIXED, place))
        except OSError:
            _libc.munmap(ctypes.c_void_p(copy), ctypes.c_size_t(room))
            raise
        self.copied_bytes += room

    def _advise(self, advice: int) -> None:
        _libc.madvise(ctypes.c_void_p(self.address), ctypes.c_size_t(self.size), advice)


def _mapped(size: int, access: int, kind: int, descriptor: int) -> int:
    return _checked(_libc.mmap(None, ctypes.c_size_t(size), access, kind, descriptor, ctypes.c_long(0)))


def _checked(address: int | None) -> int:
    if address is None or address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return address


def _read(descriptor: int, begin: int, into: memoryview) -> None:
    done = 0
    while done < len(into):
        count = os.preadv(descriptor, [into[done:]], begin + done)
        if not count:
            raise OSError(errno.ENODATA, "it is shorter than it was")
        done += count


def _available_bytes() -> int:
    """What the system could give, page cache included, and so the pages that are copied."""
    with Path("/proc/meminfo").open(encoding="ascii") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
