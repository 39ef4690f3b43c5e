"""Puts a tensor's memory onto a file without moving it: what pointed to it still does.

A tensor's whole pages are written to a file, and the file is mapped over them at the same addresses. From
then on the system may drop them at any time and reads them back when they are touched. The mapping is
private, so whoever frees the memory later, or writes to it, does no harm to the file.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

PAGE = mmap.PAGESIZE
_MAP_PRIVATE, _MAP_FIXED = 0x02, 0x10
_READ_WRITE = 0x01 | 0x02
_WILL_NEED, _DONT_NEED, _POPULATE_READ = 3, 4, 22
_FAILED = ctypes.c_void_p(-1).value


@dataclass(frozen=True, slots=True)
class Region:
    """Whole pages that lie in a file."""

    address: int
    nbytes: int
    offset: int
    """In the file."""
    tensor: Tensor = field(repr=False, compare=False)
    """What lies there: as long as anybody may drop its pages, nobody else is given the memory."""


class SpillFile:
    """A file without a name, which ends with the process.

    Args:
        directory: Where it lies; made when it is not there.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 # open for as long as the model is
        self._libc = _libc()
        self.nbytes = 0
        self.cold = False
        """Whether the system shall not keep what was dropped either, so that it comes from the disk again."""

    def put(self, tensors: Iterable[Tensor]) -> tuple[Region, ...]:
        """Take the whole pages of the tensors. Raises ``OSError``: no room, or the system refuses."""
        regions = []
        for tensor in tensors:
            begin = -(-tensor.data_ptr() // PAGE) * PAGE
            end = (tensor.data_ptr() + tensor.nbytes) // PAGE * PAGE
            if end > begin:
                regions.append(self._put(begin, end - begin, tensor))
        return tuple(regions)

    def _put(self, address: int, nbytes: int, tensor: Tensor) -> Region:
        region = Region(address, nbytes, self.nbytes, tensor)
        view = memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")
        done = 0
        while done < nbytes:
            done += os.pwrite(self._file.fileno(), view[done:], region.offset + done)
        mapped = self._libc.mmap(
            address, nbytes, _READ_WRITE, _MAP_PRIVATE | _MAP_FIXED, self._file.fileno(), region.offset
        )
        if mapped == _FAILED or mapped is None:
            raise OSError(ctypes.get_errno(), "the system refuses to map weights from a file")
        self.nbytes += nbytes
        return region

    def flush(self) -> None:
        """Wait until the file is on disk: only then can the system drop its pages for nothing."""
        os.fdatasync(self._file.fileno())

    def fetch(self, regions: Iterable[Region]) -> None:
        """Read pages in; whoever touches them then need not wait. Raises ``OSError`` when they cannot be."""
        regions = tuple(regions)
        for region in regions:  # all of it is asked for at once, and in large pieces
            self._libc.madvise(region.address, region.nbytes, _WILL_NEED)
        for region in regions:
            if self._libc.madvise(region.address, region.nbytes, _POPULATE_READ) != 0:
                number = ctypes.get_errno()
                if number != errno.EINVAL:  # a system older than that: pages come when they are touched
                    raise OSError(number, "weights cannot be read back from their file")

    def drop(self, regions: Iterable[Region]) -> None:
        """Give pages back. The system may keep the file's content as long as nobody else needs the memory."""
        for region in regions:
            self._libc.madvise(region.address, region.nbytes, _DONT_NEED)
            if self.cold:
                self._forget(region.offset, region.nbytes)

    def _forget(self, offset: int, nbytes: int) -> None:
        os.posix_fadvise(self._file.fileno(), offset, nbytes, os.POSIX_FADV_DONTNEED)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc
