"""Puts a tensor's memory onto a file without moving it: what pointed to it still does.

A tensor's whole pages are written to a file, and the file is mapped over them at the same addresses. From
then on the system may drop them at any time and reads them back when they are touched. The mapping is
private, so whoever frees the memory later, or writes to it, does no harm to the file.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from hundredfold_worker.model.offload.pages import PAGE, give_back, map_over


@dataclass(frozen=True, slots=True)
class Region:
    """Whole pages that lie in a file."""

    address: int
    nbytes: int
    offset: int
    """In the file."""
    tensor: Tensor = field(repr=False, compare=False)
    """What lies there: as long as anybody may map its pages anew, nobody else is given the memory."""


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
        self.nbytes = 0

    def fileno(self) -> int:
        """The descriptor."""
        return self._file.fileno()

    def put(self, tensors: Iterable[Tensor]) -> tuple[Region, ...]:
        """Take the whole pages of the tensors; they lie one behind the other.

        Raises ``OSError``: no room, or the system refuses.
        """
        regions = []
        for tensor in tensors:
            begin = -(-tensor.data_ptr() // PAGE) * PAGE
            end = (tensor.data_ptr() + tensor.nbytes) // PAGE * PAGE
            if end > begin:
                regions.append(self._put(Region(begin, end - begin, self.nbytes, tensor)))
        return tuple(regions)

    def _put(self, region: Region) -> Region:
        view = memoryview((ctypes.c_char * region.nbytes).from_address(region.address)).cast("B")
        done = 0
        while done < region.nbytes:
            done += os.pwrite(self.fileno(), view[done:], region.offset + done)
        self.map([region])
        self.nbytes += region.nbytes
        return region

    def map(self, regions: Iterable[Region]) -> None:
        """Have the file lie at the regions' addresses, whatever lies there. Raises ``OSError``: refused."""
        access = mmap.PROT_READ | mmap.PROT_WRITE
        for region in regions:
            map_over(region.address, region.nbytes, self.fileno(), region.offset, access, mmap.MAP_PRIVATE)

    def flush(self) -> None:
        """Wait until the file is on disk: only then can the system drop its pages for nothing."""
        os.fdatasync(self.fileno())

    def drop(self, regions: Iterable[Region]) -> None:
        """Give pages back. The system may keep the file's content as long as nobody else needs the memory."""
        for region in regions:
            give_back(region.address, region.nbytes)

    def forget(self) -> None:
        """Have the system keep nothing of the file, as if others needed all memory."""
        os.posix_fadvise(self.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
