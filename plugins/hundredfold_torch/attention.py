"""Paged attention in plain torch: causal, grouped heads, sliding window, soft-cap, sinks; any device."""

from __future__ import annotations

import math
from itertools import accumulate

import torch
from torch import Tensor

from hundredfold.plugin import (
    API_VERSION,
    AttentionBatch,
    AttentionSpec,
    Encoding,
    KVCacheSpec,
    LayerCache,
    Reasons,
    own_cache,
)
from hundredfold.plugin.kv_codes import code_bytes, scale_shape
from hundredfold_torch.gathered import GatheredRows
from hundredfold_torch.long_row import LongRow
from hundredfold_torch.paged_cache import DTYPES, SCALES, TorchLayerCache, token_rows
from hundredfold_torch.workspace import Workspace

MAX_SHORT_QUERIES = 8
"""Rows with more queries are computed one by one."""
PADDING = 1.25
"""Rows gathered together have at most this many times the blocks of the shortest, and one more."""
MAX_GATHERED = 1 << 21
"""Key elements gathered at once, so that they stay in the processor's cache; a single row may have more."""


class TorchAttention:
    """The default backend, always available. It keeps buffers for one step at a time."""

    name = "torch"
    api_version = API_VERSION
    priority = 0

    def __init__(self) -> None:
        self._workspace = Workspace()

    def refuses(self, layer: AttentionSpec, cache: KVCacheSpec, encoding: Encoding) -> Reasons:
        """Takes every layer over floats, and over codes with scales for each token and head."""
        reasons = []
        if encoding not in DTYPES:
            known = ", ".join(sorted(known.value for known in DTYPES))
            reasons.append(f"reads caches in {known}, not in {encoding.value}")
        if layer.num_heads % layer.num_kv_heads:
            reasons.append(f"{layer.num_heads} query heads are no multiple of {layer.num_kv_heads} kv heads")
        return reasons

    def varies(self, layer: AttentionSpec, cache: KVCacheSpec, encoding: Encoding) -> Reasons:
        """In float32 on CPU it tries to keep bits; that a matrix library does at every shape nobody knows."""
        return ["torch's products add in an order that depends on the rows beside them"]

    def bytes_per_block(self, cache: KVCacheSpec, encoding: Encoding) -> int:
        """Keys and values, and their scales."""
        kind = SCALES.get(encoding)
        scales = 0 if kind is None else math.prod(scale_shape(encoding, cache.head_dim)) * kind.itemsize
        token = code_bytes(encoding, cache.head_dim) * DTYPES[encoding].itemsize + scales
        return 2 * cache.num_kv_heads * cache.block_size * token

    def allocate(self, cache: KVCacheSpec, encoding: Encoding, num_blocks: int) -> TorchLayerCache:
        """One layer's cache."""
        return TorchLayerCache.allocate(cache, encoding, num_blocks)

    def plan(self, batch: AttentionBatch, cache: KVCacheSpec, encoding: Encoding) -> TorchPlannedAttention:
        """Sort the rows into groups that are computed together."""
        starts = [0, *accumulate(batch.query_lens)]
        sizes = [-(-length // cache.block_size) for length in batch.seq_lens]
        long, short = [], []
        for row, queries in enumerate(batch.query_lens):
            if queries > MAX_SHORT_QUERIES:
                long.append(
                    LongRow(
                        cache=cache,
                        start=starts[row],
                        num_queries=queries,
                        num_keys=batch.seq_lens[row],
                        blocks=batch.block_tables[row, : sizes[row]],
                    )
                )
            elif queries:
                short.append(row)
        gathered = [
            self._gather(rows, starts, batch, cache, sizes[rows[-1]])
            for rows in _alike(short, batch.query_lens, sizes, cache)
        ]
        return TorchPlannedAttention(token_rows(batch.slot_mapping, cache).flatten(), gathered, long)

    def _gather(
        self, rows: list[int], starts: list[int], batch: AttentionBatch, cache: KVCacheSpec, blocks: int
    ) -> GatheredRows:
        device = batch.block_tables.device
        queries = [token for row in rows for token in range(starts[row], starts[row + 1])]
        return GatheredRows(
            cache=cache,
            queries=torch.tensor(queries, device=device),
            ends=torch.tensor([batch.seq_lens[row] for row in rows], device=device),
            blocks=batch.block_tables[:, :blocks].index_select(0, torch.tensor(rows, device=device)),
            seen_by_all=min(batch.seq_lens[row] - batch.query_lens[row] for row in rows) + 1,
            workspace=self._workspace,
        )


class TorchPlannedAttention:
    """A step, prepared."""

    def __init__(self, written: Tensor, gathered: list[GatheredRows], long: list[LongRow]) -> None:
        self._written = written
        self._gathered = gathered
        self._long = long

    def __call__(self, layer: AttentionSpec, cache: LayerCache, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write ``k`` and ``v``, then attend. Shapes as in the contract."""
        own = own_cache(cache, TorchLayerCache)
        own.write(self._written, k, v)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for rows in self._gathered:
            rows.attend(layer, own, q, out)
        for row in self._long:
            row.attend(layer, own, q, out)
        return out.view(len(q), layer.num_heads * layer.head_dim)


def _alike(rows: list[int], query_lens: list[int], sizes: list[int], cache: KVCacheSpec) -> list[list[int]]:
    """Group rows by number of queries and by similar length, the longest of a group last."""
    block_elements = cache.num_kv_heads * cache.block_size * cache.head_dim
    groups: list[list[int]] = []
    for row in sorted(rows, key=lambda row: (query_lens[row], sizes[row])):
        if groups:
            group = groups[-1]
            shortest = group[0]
            if (
                query_lens[row] == query_lens[shortest]
                and sizes[row] <= sizes[shortest] * PADDING + 1
                and (len(group) + 1) * sizes[row] * block_elements <= MAX_GATHERED
            ):
                group.append(row)
                continue
        groups.append([row])
    return groups
