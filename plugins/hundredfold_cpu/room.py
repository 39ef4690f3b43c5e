"""Room for packed weights in huge pages: a step reads all of them, and looking up small pages takes time."""

from __future__ import annotations

import contextlib
import mmap

import torch
from torch import Tensor

CHUNK = 1 << 25
"""Bytes that are asked for at a time; what is not used is not touched, and so takes no memory."""

_LINE = 64


def huge_pages(nbytes: int) -> mmap.mmap:
    """Zeros, in huge pages where the system has them. Raises ``MemoryError``."""
    try:
        # Shared memory, Python's default, has huge pages only where a system allows them for it.
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no {nbytes} bytes in one piece") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class Room:
    """Gives out tensors side by side. Memory goes back when all tensors of a chunk are gone."""

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8)

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Zeros that begin at a line of the cache."""
        nbytes = dtype.itemsize
        for size in shape:
            nbytes *= size
        whole = -(-nbytes // _LINE) * _LINE
        if whole > len(self._left):
            self._left = torch.frombuffer(huge_pages(max(whole, CHUNK)), dtype=torch.uint8)
        taken, self._left = self._left[:nbytes], self._left[whole:]
        return taken.view(dtype).view(shape)

    def keep(self, tensor: Tensor) -> Tensor:
        """A copy."""
        return self.take(tuple(tensor.shape), tensor.dtype).copy_(tensor)
