"""A step as the native kernel takes it: tiles of queries, writes that come first, room to work in."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hundredfold.plugin import AttentionBatch, AttentionSpec, KVCacheSpec
from hundredfold_cpu.library import INT, POINTER
from hundredfold_cpu.paged_cache import LANES, padded

TILE_ROWS = 24
"""Queries times heads of a group that are computed together: keys and values are read once for all."""
TILE_SCORES = 1 << 16
"""Scores of a tile: they should stay in a core's own cache. A single query may have more."""
PIECE = 16
"""Tokens that one thread writes at a time."""

Ints = NDArray[np.int64]


class StepRecord(ctypes.Structure):
    """``Step`` of native/attention.cpp."""

    _fields_ = (
        ("tiles", POINTER),
        ("num_tiles", INT),
        ("pieces", POINTER),
        ("num_pieces", INT),
        ("tables", POINTER),
        ("table_stride", INT),
        ("slots", POINTER),
        ("scratch", POINTER),
        ("scratch_stride", INT),
        ("num_threads", INT),
    )


@dataclass(slots=True)
class Scratch:
    """Memory to work in, kept between steps; one step uses it at a time."""

    _buffer: Tensor = field(default_factory=lambda: torch.empty(0))

    def take(self, size: int) -> Tensor:
        """At least ``size`` floats. Hold them while their address is in use: a larger need replaces them."""
        if self._buffer.numel() < size:
            self._buffer = torch.empty(size)
        return self._buffer


@dataclass(frozen=True, slots=True)
class Step:
    """A prepared step, and all that its addresses point to."""

    address: ctypes._CArgObject
    """To pass as the kernel's argument."""
    held: tuple[object, ...]


def prepare_step(batch: AttentionBatch, cache: KVCacheSpec, layer: AttentionSpec, scratch: Scratch) -> Step:
    """For every layer with as many heads and such a window."""
    group = layer.num_heads // layer.num_kv_heads
    queries = np.array(batch.query_lens, dtype=np.int64)
    lengths = np.array(batch.seq_lens, dtype=np.int64)
    window = lengths if layer.sliding_window is None else np.minimum(lengths, layer.sliding_window)
    most = max(1, TILE_ROWS // group)
    sizes = np.clip(TILE_SCORES // (group * np.maximum(window, 1)), 1, most)
    rows, firsts, counts = _cut(queries, sizes)
    starts = np.cumsum(queries) - queries
    positions = (lengths - queries)[rows] + firsts
    cut = (queries > sizes)[rows]
    tiles = np.stack((rows, starts[rows] + firsts, counts, positions, ~cut), axis=1)
    # the longest first, so that no thread is left with one at the end
    seen = positions + counts if layer.sliding_window is None else window[rows] + counts
    tiles = np.ascontiguousarray(tiles[np.argsort(-counts * seen, kind="stable")])
    long = np.flatnonzero(queries > sizes)
    owners, piece_firsts, piece_counts = _cut(queries[long], np.full(len(long), PIECE))
    pieces = np.ascontiguousarray(np.stack((starts[long][owners] + piece_firsts, piece_counts), axis=1))
    # of each query and head: itself, its sums, its scores in whole vectors, their total
    floats = layer.head_dim + padded(layer.head_dim) + np.minimum(seen, lengths[rows]) + 2 * LANES + 1
    stride = int(np.max(counts * floats, initial=1)) * group + LANES
    threads = torch.get_num_threads()
    room = scratch.take(stride * threads)
    step = StepRecord(
        tiles.ctypes.data,
        len(tiles),
        pieces.ctypes.data,
        len(pieces),
        batch.block_tables.data_ptr(),
        batch.block_tables.stride(0),
        batch.slot_mapping.data_ptr(),
        room.data_ptr(),
        stride,
        threads,
    )
    return Step(ctypes.byref(step), (step, tiles, pieces, batch, room))


def _cut(lengths: Ints, sizes: Ints) -> tuple[Ints, Ints, Ints]:
    """Each row in parts of its size: owner, first element and number of elements of every part."""
    parts = -(-lengths // sizes)
    owners = np.repeat(np.arange(len(lengths)), parts)
    index = np.arange(len(owners)) - np.repeat(np.cumsum(parts) - parts, parts)
    firsts = index * sizes[owners]
    return owners, firsts, np.minimum(sizes[owners], lengths[owners] - firsts)
