"""Paged attention by flash-attn 2: rows of one query by one of its functions, others by another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from hundredfold.plugin import (
    API_VERSION,
    AttentionBatch,
    AttentionSpec,
    Encoding,
    KeysAndValues,
    KVCacheSpec,
    LayerCache,
    Reasons,
    own_cache,
)
from hundredfold_flash.library import Library, find

BLOCK_STEP = 256
"""flash-attn 2 reads paged caches whose blocks hold a multiple of this many tokens."""
HEAD_STEP, MOST_HEAD_DIM = 8, 256


class FlashCache(KeysAndValues):
    """One layer: keys and values, each [blocks, block_size, kv_heads, head_dim], as flash-attn wants them."""

    __slots__ = ()

    def write(self, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Write ``k`` and ``v`` [tokens, kv_heads, head_dim] at ``slots`` int64[tokens]."""
        for part, new in ((self.keys, k), (self.values, v)):
            part.flatten(0, 1).index_copy_(0, slots, new)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that one call computes."""

    tokens: Tensor | None
    """int64[queries]: their places in the step; ``None`` when they are all of it."""
    tables: Tensor
    """int32[rows, blocks]."""
    lengths: Tensor
    """int32[rows]: tokens in the cache."""
    query_starts: Tensor | None
    """int32[rows + 1], or ``None`` where each row has one query."""
    key_starts: Tensor | None
    """int32[rows + 1]: running sum of ``lengths``, where ``query_starts`` is."""
    longest_query: int
    longest: int


class FlashAttention:
    """flash-attn 2 on CUDA: bf16, blocks of 256 tokens, window and soft-cap, no sinks."""

    name = "flash_attn"
    api_version = API_VERSION
    priority = 20

    def __init__(self, library: Library | None = None) -> None:
        self._given = library

    def unavailable(self) -> Reasons:
        """Why it cannot run on this machine, whatever the model."""
        found = self._library()
        return [found] if isinstance(found, str) else []

    def refuses(self, layer: AttentionSpec, cache: KVCacheSpec, encoding: Encoding) -> Reasons:
        """Says all that stands against it at once."""
        found = self._library()
        wanted_device = "cuda" if isinstance(found, str) else found.device_type
        checks = {
            found if isinstance(found, str) else "": isinstance(found, str),
            f"runs on {wanted_device}, not on {cache.device.type}": cache.device.type != wanted_device,
            f"reads bf16 caches, not {encoding.value}": encoding is not Encoding.BF16,
            f"needs queries of the cache's type, bfloat16, not {_name(cache.dtype)}": (
                cache.dtype is not torch.bfloat16
            ),
            f"needs blocks of a multiple of {BLOCK_STEP} tokens, not {cache.block_size}: set block_size to "
            f"{BLOCK_STEP}": cache.block_size % BLOCK_STEP != 0,
            f"takes head_dim up to {MOST_HEAD_DIM} in steps of {HEAD_STEP}, not {layer.head_dim}": (
                layer.head_dim > MOST_HEAD_DIM or layer.head_dim % HEAD_STEP != 0
            ),
            f"{layer.num_heads} query heads are no multiple of {layer.num_kv_heads} kv heads": (
                layer.num_heads % layer.num_kv_heads != 0
            ),
            "knows no sinks": layer.sinks is not None,
        }
        return [reason for reason, applies in checks.items() if applies]

    def bytes_per_block(self, cache: KVCacheSpec, encoding: Encoding) -> int:
        """Keys and values in bf16."""
        return 2 * cache.block_size * cache.num_kv_heads * cache.head_dim * torch.bfloat16.itemsize

    def allocate(self, cache: KVCacheSpec, encoding: Encoding, num_blocks: int) -> FlashCache:
        """One layer's cache."""
        shape = (num_blocks, cache.block_size, cache.num_kv_heads, cache.head_dim)
        keys, values = (torch.zeros(shape, dtype=torch.bfloat16, device=cache.device) for _ in range(2))
        return FlashCache(keys, values)

    def plan(self, batch: AttentionBatch, cache: KVCacheSpec, encoding: Encoding) -> FlashPlan:
        """Sort the rows into those of one query and those of several. Raises ``RuntimeError`` when absent."""
        found = self._library()
        if isinstance(found, str):
            raise RuntimeError(f"flash_attn cannot run here: {found}")
        single = [row for row, count in enumerate(batch.query_lens) if count == 1]
        several = [row for row, count in enumerate(batch.query_lens) if count > 1]
        starts = [0, *accumulate(batch.query_lens)]
        groups = [_rows(rows, starts, batch, cache.block_size) for rows in (single, several) if rows]
        return FlashPlan(found, batch.slot_mapping, groups)

    def _library(self) -> Library | str:
        return self._given if self._given is not None else find()


class FlashPlan:
    """A step, prepared."""

    def __init__(self, library: Library, slots: Tensor, groups: Sequence[Rows]) -> None:
        self._library = library
        self._slots = slots
        self._groups = groups

    def __call__(self, layer: AttentionSpec, cache: LayerCache, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write ``k`` and ``v``, then attend. Shapes as in the contract."""
        own = own_cache(cache, FlashCache)
        own.write(self._slots, k, v)
        if len(self._groups) == 1 and self._groups[0].tokens is None:
            return self._attend(layer, own, q, self._groups[0]).reshape(len(q), -1)
        out = torch.empty_like(q)
        for rows in self._groups:
            tokens = rows.tokens
            if tokens is not None:
                out.index_copy_(0, tokens, self._attend(layer, own, q.index_select(0, tokens), rows))
        return out.reshape(len(q), -1)

    def _attend(self, layer: AttentionSpec, cache: FlashCache, q: Tensor, rows: Rows) -> Tensor:
        """``q`` [queries, heads, head_dim] to the same shape."""
        left = -1 if layer.sliding_window is None else layer.sliding_window - 1
        common = {
            "softmax_scale": layer.scale,
            "causal": True,
            "window_size": (left, 0 if left >= 0 else -1),
            "softcap": layer.softcap or 0.0,
            "block_table": rows.tables,
        }
        if rows.query_starts is None:
            out = self._library.with_cache(
                q.unsqueeze(1), cache.keys, cache.values, cache_seqlens=rows.lengths, **common
            )
            return out.squeeze(1)
        return self._library.varlen(
            q,
            cache.keys,
            cache.values,
            cu_seqlens_q=rows.query_starts,
            cu_seqlens_k=rows.key_starts,
            max_seqlen_q=rows.longest_query,
            max_seqlen_k=rows.longest,
            **common,
        )


def _rows(rows: list[int], starts: list[int], batch: AttentionBatch, block_size: int) -> Rows:
    """The metadata of some rows, all on the device."""
    device = batch.block_tables.device
    counts, lengths = [batch.query_lens[row] for row in rows], [batch.seq_lens[row] for row in rows]
    everyone = len(rows) == len(batch.query_lens)
    tokens = [token for row in rows for token in range(starts[row], starts[row + 1])]
    tables = batch.block_tables[:, : -(-max(lengths) // block_size)]
    if not everyone:
        tables = tables.index_select(0, torch.tensor(rows, device=device))
    several = max(counts) > 1
    return Rows(
        tokens=None if everyone else torch.tensor(tokens, device=device),
        tables=tables,
        lengths=_int32(lengths, device),
        query_starts=_int32([0, *accumulate(counts)], device) if several else None,
        key_starts=_int32([0, *accumulate(lengths)], device) if several else None,
        longest_query=max(counts),
        longest=max(lengths),
    )


def _int32(numbers: list[int], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=device)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
