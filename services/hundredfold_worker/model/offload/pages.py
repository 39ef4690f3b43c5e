"""What the system is told and asked about pages: what lies there, what is not needed, what is in memory."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os

PAGE = mmap.PAGESIZE
_MAP_FIXED = 0x10
_DONT_NEED = 4
_FAILED = ctypes.c_void_p(-1).value


def map_over(address: int, nbytes: int, file: int, offset: int, protection: int, flags: int) -> None:
    """Put ``file`` from ``offset`` on over whole pages, whatever was there. Raises ``OSError``: refused."""
    _map(address, nbytes, file, offset, protection, flags | _MAP_FIXED)


def give_back(address: int, nbytes: int) -> None:
    """The process needs these pages no more; a file's come back when they are touched."""
    _libc().madvise(address, nbytes, _DONT_NEED)


class Presence:
    """Tells which parts of a file the system has in memory: a mapping that nobody touches.

    Args:
        file: A descriptor.
        nbytes: Its length, not 0.

    Raises:
        OSError: It cannot be mapped.
    """

    def __init__(self, file: int, nbytes: int) -> None:
        self._nbytes = nbytes
        self._address = _map(None, nbytes, file, 0, mmap.PROT_READ, mmap.MAP_SHARED)

    def all_of(self, offset: int, nbytes: int) -> bool:
        """Whether a part that begins with a page is in memory as a whole."""
        count = -(-nbytes // PAGE)
        pages = ctypes.create_string_buffer(count)
        asked = _libc().mincore(self._address + offset, nbytes, pages)
        return asked == 0 and b"\0" not in pages.raw[:count]

    def __del__(self) -> None:
        if hasattr(self, "_address"):
            _libc().munmap(self._address, self._nbytes)


def _map(address: int | None, nbytes: int, file: int, offset: int, protection: int, flags: int) -> int:
    mapped = _libc().mmap(address, nbytes, protection, flags, file, offset)
    if mapped == _FAILED or mapped is None:
        number = ctypes.get_errno()
        raise OSError(number, f"the system refuses to map weights from a file: {os.strerror(number)}")
    return int(mapped)


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.restype = pointer
    libc.mmap.argtypes = [pointer, size, number, number, number, ctypes.c_long]
    libc.munmap.argtypes = [pointer, size]
    libc.madvise.argtypes = [pointer, size, number]
    libc.mincore.argtypes = [pointer, size, ctypes.c_char_p]
    return libc
