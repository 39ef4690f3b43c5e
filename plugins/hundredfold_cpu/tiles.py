"""A step as the native kernel takes it: tiles of queries, how they are dealt out, what is written before."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hundredfold.plugin import AttentionBatch, AttentionSpec, KVCacheSpec
from hundredfold_cpu.choice import BlockChoice
from hundredfold_cpu.library import INT, POINTER
from hundredfold_cpu.paged_cache import LANES, padded

TILE_ROWS = 24
"""Queries times heads of a group that are computed together: keys and values are read once for all."""
RUN = 512
"""Keys that are taken together, as in native/products.h."""
STRETCH = 256
"""Keys at least whose sketches are taken together, as in native/choice.h."""
PIECE = 16
"""Tokens that one thread writes at a time."""
SHARES = 4
"""An item of work is at most one part in so many of what a thread has to do, where it can be cut so small."""
ALL_RUNS = -1

Ints = NDArray[np.int64]

PART = 4
"""A query that chooses is taken to be so many times less work than one that attends to all."""

_NO_CHOICE = (0, 0, 0.0, 0)
"""Blocks at the start and before a query's own, what is left out, and floats to choose in, of a step that
attends to all."""

_NOTHING: Ints = np.empty((0, 4), dtype=np.int64)


class StepRecord(ctypes.Structure):
    """``Step`` of native/step.h."""

    _fields_ = (
        ("tiles", POINTER),
        ("items", POINTER),
        ("num_items", INT),
        ("joins", POINTER),
        ("num_joins", INT),
        ("pieces", POINTER),
        ("num_pieces", INT),
        ("tables", POINTER),
        ("table_stride", INT),
        ("slots", POINTER),
        ("scratch", POINTER),
        ("scratch_stride", INT),
        ("parts", POINTER),
        ("num_threads", INT),
        ("first_blocks", INT),
        ("last_blocks", INT),
        ("left_out", ctypes.c_double),
        ("choice_room", INT),
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


def prepare_step(
    batch: AttentionBatch,
    cache: KVCacheSpec,
    layer: AttentionSpec,
    scratch: Scratch,
    choice: BlockChoice | None = None,
) -> Step:
    """For every layer with as many heads and such a window.

    With a ``choice`` queries that do not attend to all blocks are tiles of their own. Who has a window
    attends to all of it.
    """
    choice = None if layer.sliding_window is not None else choice
    threads = torch.get_num_threads()
    group, heads, width = layer.num_heads // layer.num_kv_heads, layer.num_kv_heads, padded(layer.head_dim)
    lengths = np.array(batch.seq_lens, dtype=np.int64)
    # of each query and head: itself, two sums, six numbers, scores, and weights in half as much
    head_room = group * (3 * width + 6 + RUN + RUN // 2)
    if choice is None and set(batch.query_lens) == {1} and max(batch.seq_lens) <= RUN:
        tiles, items = _decode(lengths, layer.sliding_window, heads, threads)
        return _step(batch, tiles, items, _NOTHING, _NOTHING, scratch, head_room, 0)
    queries = np.array(batch.query_lens, dtype=np.int64)
    starts = np.cumsum(queries) - queries
    computed, size = lengths - queries, cache.block_size
    exact = queries if choice is None else _exact(choice, batch.prompt_lens, queries, lengths, size)
    rows, firsts, counts = _cut(exact, max(1, TILE_ROWS // group))
    blocks = np.zeros_like(rows)
    if choice is not None and bool((exact < queries).any()):
        single, which, ones = _cut(queries - exact, 1)
        which = which + exact[single]
        blocks = np.concatenate((blocks, choice.blocks(computed[single] + which, size)))
        rows, firsts = np.concatenate((rows, single)), np.concatenate((firsts, which))
        counts = np.concatenate((counts, ones))
    positions = computed[rows] + firsts
    seen_from = np.zeros_like(positions)
    if layer.sliding_window is not None:
        seen_from = np.maximum(positions + 1 - layer.sliding_window, 0)
    ends = np.where(blocks > 0, (positions + counts) // PART, positions + counts)
    runs = -(-ends // RUN) - seen_from // RUN
    # the longest first, so that no thread is left with one at the end
    work = counts * (ends - seen_from)
    order = np.argsort(-work, kind="stable")
    share = int(work.sum()) * heads // (SHARES * threads)
    # whose runs are items of their own
    alone = (work > share) & (runs > 1) & (threads > 1) & (blocks == 0)
    items = _items(order, heads, np.where(work * heads > share, 1, heads), np.where(alone, runs, 1))
    items[:, 3] = np.where(alone[items[:, 0]], items[:, 3] + seen_from[items[:, 0]] // RUN, ALL_RUNS)
    split = np.flatnonzero(alone)
    joins = _items(split, heads, np.ones_like(rows), np.ones_like(rows))
    parts = np.full(len(rows), -1)
    sizes = runs[split] * heads * counts[split] * group * (width + 2)
    parts[split] = np.cumsum(sizes) - sizes
    before = np.zeros(len(queries), dtype=bool)  # rows that are written before anything is read
    before[rows[alone | (firsts > 0)]] = True
    tiles = np.stack((rows, starts[rows] + firsts, counts, positions, ~before[rows], parts, blocks), axis=1)
    long = np.flatnonzero(before)
    pieces = _pieces(starts[long], queries[long])
    stride = int(counts.max(initial=1)) * head_room
    chosen = _NO_CHOICE
    if choice is not None and blocks.any():
        most = int(positions[blocks > 0].max()) // size + 1
        room = _choice_room(group, width, size, most)
        chosen = (choice.first_blocks(size), choice.last_blocks(size), 1 - choice.keep, room)
        stride += room
    return _step(batch, tiles, items, joins, pieces, scratch, stride, int(sizes.sum()), chosen)


def _decode(lengths: Ints, window: int | None, heads: int, threads: int) -> tuple[Ints, Ints]:
    """The same tiles and items where every row has one query and all its keys lie in one run: steps that come
    so often, and are so short, that a dozen array operations less are felt.
    """
    num = len(lengths)
    tiles = np.empty((num, 7), dtype=np.int64)
    tiles[:, 0] = tiles[:, 1] = np.arange(num)
    tiles[:, 2] = tiles[:, 4] = 1
    np.subtract(lengths, 1, out=tiles[:, 3])
    tiles[:, 5], tiles[:, 6] = -1, 0
    work = lengths if window is None else np.minimum(lengths, window)
    order = np.argsort(-work, kind="stable")
    share = int(work.sum()) * heads // (SHARES * threads)
    if int(work[order[0]]) * heads <= share:  # the longest, too, with all its heads
        items = np.empty((num, 4), dtype=np.int64)
        items[:, 0], items[:, 1], items[:, 2] = order, 0, heads
    elif int(work[order[-1]]) * heads > share:
        items = np.empty((num * heads, 4), dtype=np.int64)
        items[:, 0], items[:, 1], items[:, 2] = np.repeat(order, heads), np.arange(num * heads) % heads, 1
    else:
        items = _items(order, heads, np.where(work * heads > share, 1, heads), np.ones_like(work))
    items[:, 3] = ALL_RUNS
    return tiles, items


def _step(
    batch: AttentionBatch,
    tiles: Ints,
    items: Ints,
    joins: Ints,
    pieces: Ints,
    scratch: Scratch,
    stride: int,
    part_floats: int,
    chosen: tuple[int, int, float, int] = _NO_CHOICE,
) -> Step:
    threads = torch.get_num_threads()
    room = scratch.take(stride * threads + part_floats)
    step = StepRecord(
        tiles.ctypes.data,
        items.ctypes.data,
        len(items),
        joins.ctypes.data if len(joins) else None,
        len(joins),
        pieces.ctypes.data if len(pieces) else None,
        len(pieces),
        batch.block_tables.data_ptr(),
        batch.block_tables.stride(0),
        batch.slot_mapping.data_ptr(),
        room.data_ptr(),
        stride,
        room.data_ptr() + stride * threads * room.itemsize,
        threads,
        *chosen,
    )
    return Step(ctypes.byref(step), (step, tiles, items, joins, pieces, batch, room))


def _exact(
    choice: BlockChoice, prompt_lens: list[int] | None, queries: Ints, lengths: Ints, size: int
) -> Ints:
    """Of each row, how many leading queries attend to all: those of its prompt, and at short lengths."""
    given = (
        np.where(queries > 1, lengths, 0) if prompt_lens is None else np.array(prompt_lens, dtype=np.int64)
    )
    until = np.maximum(given, choice.exact_until(size, int(lengths.max(initial=0))))
    exact: Ints = np.clip(until - (lengths - queries), 0, queries)
    return exact


def _choice_room(group: int, width: int, size: int, blocks: int) -> int:
    """Floats to choose in, as ``ChoiceRoom`` of native/choice.h takes them."""
    each = -(-blocks // LANES) * LANES
    stretch = -(-STRETCH // size) * size
    return group * (2 + width // 4 + stretch + 2 * each) + 3 * each


def _pieces(starts: Ints, queries: Ints) -> Ints:
    """[first token, number of tokens] of what is written before anything is read."""
    owners, firsts, counts = _cut(queries, PIECE)
    return np.stack((starts[owners] + firsts, counts), axis=1)


def _items(tiles: Ints, heads: int, at_once: Ints, runs: Ints) -> Ints:
    """[tile, first head, number of heads, run] for ``tiles``, so many heads and one of so many runs each."""
    owners, first_heads, num_heads = _cut(np.full(len(tiles), heads), at_once[tiles])
    items, run, _ = _cut(runs[tiles][owners], 1)
    return np.stack((tiles[owners][items], first_heads[items], num_heads[items], run), axis=1)


def _cut(lengths: Ints, sizes: Ints | int) -> tuple[Ints, Ints, Ints]:
    """Each row in parts of its size: owner, first element and number of elements of every part."""
    if bool(((lengths <= sizes) & (lengths > 0)).all()):  # a decode step: a fifth of the time
        return np.arange(len(lengths)), np.zeros_like(lengths), lengths
    sizes = np.broadcast_to(sizes, lengths.shape)
    parts = -(-lengths // sizes)
    owners = np.repeat(np.arange(len(lengths)), parts)
    index = np.arange(len(owners)) - np.repeat(np.cumsum(parts) - parts, parts)
    firsts = index * sizes[owners]
    return owners, firsts, np.minimum(sizes[owners], lengths[owners] - firsts)
