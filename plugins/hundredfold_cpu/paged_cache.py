"""The native backend's cache: blocks of bytes, laid out as ``native/paged.h`` says."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hundredfold.plugin import Encoding, KVCacheSpec
from hundredfold.plugin.kv_codes import BAND
from hundredfold_cpu.room import huge_pages

LANES = 16
"""Keys that lie together, and what a value's columns are padded to."""

HUGE_PAGE = 1 << 21
_POPULATE_WRITE = 23
"""``MADV_POPULATE_WRITE``, which has no name in Python: a tenth of the time of writing to all pages."""


@dataclass(frozen=True, slots=True)
class Stored:
    """An encoding in memory."""

    bits: int
    """Of a code."""
    scales: int = 0
    """Bytes of scales that a token has for its key of one kv head, and as many for its value."""
    bands: int = 0
    """The same for every ``BAND`` columns."""


STORED = {
    Encoding.FP32: Stored(32),
    Encoding.BF16: Stored(16),
    Encoding.INT8: Stored(8, scales=4),
    Encoding.FP8: Stored(8, scales=4),
    Encoding.FP8_E5M2: Stored(8, scales=4),
    Encoding.INT4: Stored(4, bands=4),
}


@dataclass(frozen=True, slots=True)
class CpuLayerCache:
    """One layer."""

    blocks: Tensor
    """uint8[blocks, bytes of a block]."""
    sketches: Tensor | None = None
    """uint8[blocks, bytes of a block's sketches], see native/sketch.h; ``None`` where none are kept."""

    @classmethod
    def allocate(cls, cache: KVCacheSpec, encoding: Encoding, num_blocks: int) -> CpuLayerCache:
        """Zeros, so that the pages exist from the start and a later step cannot run out of them."""
        return cls(_zeros(num_blocks, bytes_per_block(cache, encoding)))

    @classmethod
    def with_sketches(cls, cache: KVCacheSpec, encoding: Encoding, num_blocks: int) -> CpuLayerCache:
        """The same, and sketches of its keys."""
        blocks = _zeros(num_blocks, bytes_per_block(cache, encoding))
        return cls(blocks, _zeros(num_blocks, sketch_bytes(cache)))

    @property
    def nbytes(self) -> int:
        """Bytes of the whole layer."""
        return sum(part.nbytes for part in self._parts())

    def copy_blocks(self, source: Tensor, destination: Tensor) -> None:
        """Copy whole blocks; every source is read before a destination is written."""
        for part in self._parts():
            part.index_copy_(0, destination, part.index_select(0, source))

    def _parts(self) -> list[Tensor]:
        return [self.blocks] if self.sketches is None else [self.blocks, self.sketches]


def _zeros(rows: int, columns: int) -> Tensor:
    """In huge pages where the system has them: blocks lie anywhere, and looking up small pages costs much."""
    nbytes = rows * columns
    if nbytes < HUGE_PAGE:
        return torch.zeros((rows, columns), dtype=torch.uint8)
    memory = huge_pages(nbytes)
    zeros = torch.frombuffer(memory, dtype=torch.uint8).view(rows, columns)
    try:
        memory.madvise(_POPULATE_WRITE)
    except OSError:  # a system older than that
        zeros.zero_()
    return zeros


def padded(head_dim: int) -> int:
    """Columns of a value as it lies in the cache."""
    return -(-head_dim // LANES) * LANES


def sketch_bytes(cache: KVCacheSpec) -> int:
    """Bytes of a block's sketches: of each key 4 bits for every column, and a scale."""
    return cache.num_kv_heads * cache.block_size * (padded(cache.head_dim) // 2 + torch.float32.itemsize)


def bytes_per_block(cache: KVCacheSpec, encoding: Encoding) -> int:
    """Keys, whose columns are padded to two (four of 4 bits), and values, scales included."""
    stored = STORED[encoding]
    step = 4 if stored.bits == 4 else 2
    columns = -(-cache.head_dim // step) * step + padded(cache.head_dim)
    scales = 2 * (stored.scales + stored.bands * -(-cache.head_dim // BAND))
    return cache.num_kv_heads * cache.block_size * (columns * stored.bits // 8 + scales)
