"""The native backend's cache: sixteen keys side by side, column by column; sixteen columns of each value."""

from __future__ import annotations

import contextlib
import mmap

import torch
from torch import Tensor

from hundredfold.plugin import Encoding, KeysAndValues, KVCacheSpec

LANES = 16
"""Keys that lie together, and what a value's columns are padded to."""

HUGE_PAGE = 1 << 21

DTYPES = {Encoding.FP32: torch.float32, Encoding.BF16: torch.bfloat16}


class CpuLayerCache(KeysAndValues):
    """One layer: keys [blocks, kv_heads * block_size * head_dim], values with ``padded(head_dim)`` columns.

    See ``native/attention.cpp`` for how a block lies.
    """

    __slots__ = ()

    @classmethod
    def allocate(cls, cache: KVCacheSpec, encoding: Encoding, num_blocks: int) -> CpuLayerCache:
        """Zeros, so that the pages exist from the start and a later step cannot run out of them."""
        tokens = cache.num_kv_heads * cache.block_size
        widths = (cache.head_dim, padded(cache.head_dim))
        keys, values = (_zeros(num_blocks, tokens * width, DTYPES[encoding]) for width in widths)
        return cls(keys, values)


def _zeros(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """In huge pages where the system has them: blocks lie anywhere, and looking up small pages costs much."""
    nbytes = rows * columns * dtype.itemsize
    if nbytes < HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros((rows, columns), dtype=dtype)
    try:
        # Shared memory, Python's default, has huge pages only where a system allows them for it.
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{nbytes} bytes for cache blocks") from error
    with contextlib.suppress(OSError):  # a system built without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(rows, columns).zero_()


def padded(head_dim: int) -> int:
    """Columns of a value as it lies in the cache."""
    return -(-head_dim // LANES) * LANES


def bytes_per_block(cache: KVCacheSpec, encoding: Encoding) -> int:
    """Keys and values of one block."""
    width = cache.head_dim + padded(cache.head_dim)
    return cache.num_kv_heads * cache.block_size * width * DTYPES[encoding].itemsize
