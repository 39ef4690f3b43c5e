"""Attention of one row with many queries: a prompt or a piece of one."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from hundredfold.plugin import AttentionSpec, KVCacheSpec
from hundredfold_torch.paged_cache import Part, TorchLayerCache, block_rows
from hundredfold_torch.same_bits import FREE, same_bits_for
from hundredfold_torch.spelled_out import hidden_keys, scores_of, sum_values, weights_of

FUSED_QUERIES = 256
"""Queries that share a mask in the fused kernel; each piece reads only the keys that its last query sees."""
MAX_SCORES = 1 << 20
"""Scores held at once where attention is spelled out; they then stay in the processor's cache."""


@dataclass(slots=True)
class LongRow:
    """One row of a step."""

    cache: KVCacheSpec
    start: int
    """Flat position of its first query."""
    num_queries: int
    num_keys: int
    """Tokens in the cache; the queries are the last of them."""
    blocks: Tensor
    """int32[n]: the row's blocks."""
    _masks: dict[tuple[int | None, int, int], Tensor] = field(default_factory=dict)
    _block_rows: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self._block_rows = block_rows(self.blocks[None], self.cache)

    def attend(self, layer: AttentionSpec, cache: TorchLayerCache, q: Tensor, out: Tensor) -> None:
        """Fill the row's places in ``out`` [tokens, num_heads, head_dim]; its keys are in the cache."""
        own = slice(self.start, self.start + self.num_queries)
        # a batch of key heads; the queries that share one are its heads
        shape = (self.num_queries, layer.num_kv_heads, -1, layer.head_dim)
        queries, mixed = (part[own].view(shape).permute(1, 2, 0, 3) for part in (q, out))
        promised = same_bits_for(q, cache.keys) is not FREE
        if promised or layer.softcap is not None or layer.sinks is not None:
            self._spelled_out(layer, cache, queries, mixed)
        else:
            self._fused(layer, cache, queries, mixed)

    def _spelled_out(
        self, layer: AttentionSpec, cache: TorchLayerCache, queries: Tensor, mixed: Tensor
    ) -> None:
        keys, values = (self._sequence(part, torch.float32) for part in (cache.keys, cache.values))
        kv_heads, group, total, head_dim = queries.shape
        least = same_bits_for(mixed, cache.keys).least_rows
        most = max(1, MAX_SCORES // (layer.num_heads * keys.shape[1]))
        for begin in range(0, total, most):
            piece = slice(begin, min(begin + most, total))
            seen = self._blocks_seen(piece) * self.cache.block_size
            own = queries[:, :, piece].reshape(kv_heads, -1, head_dim).float() * layer.scale
            scores = scores_of(own, keys[:, :seen], least).view(layer.num_heads, -1, seen)
            first_hidden = self.num_keys - self.num_queries + piece.start + 1
            hidden = self._hidden(layer.sliding_window, piece, first_hidden, seen)
            weights = weights_of(layer, scores, hidden)
            summed = sum_values(weights.view(kv_heads, -1, seen), values[:, :seen], least)
            mixed[:, :, piece] = summed.reshape(kv_heads, group, -1, head_dim)

    def _fused(self, layer: AttentionSpec, cache: TorchLayerCache, queries: Tensor, mixed: Tensor) -> None:
        keys, values = (
            self._sequence(part, queries.dtype)[:, None, : self.num_keys].expand(-1, queries.shape[1], -1, -1)
            for part in (cache.keys, cache.values)
        )
        window = layer.sliding_window
        if self.num_queries == self.num_keys and (window is None or window >= self.num_keys):
            mixed.copy_(
                F.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=layer.scale)
            )
            return
        for first in range(0, self.num_queries, FUSED_QUERIES):
            piece = slice(first, min(first + FUSED_QUERIES, self.num_queries))
            seen = self.num_keys - self.num_queries + piece.stop
            mixed[:, :, piece] = F.scaled_dot_product_attention(
                queries[:, :, piece],
                keys[:, :, :seen],
                values[:, :, :seen],
                attn_mask=~self._hidden(window, piece, 0, seen),
                scale=layer.scale,
            )

    def _sequence(self, part: Part, dtype: torch.dtype) -> Tensor:
        """The row's keys or values, ``dtype`` [kv_heads, keys of whole blocks, head_dim]; 0 past its end."""
        gathered = part.runs.index_select(0, self._block_rows)
        gathered = (gathered if part.scales is None else part.decode(gathered, self._block_rows)).to(dtype)
        by_head = gathered.view(self.cache.num_kv_heads, -1, self.cache.head_dim)
        by_head[:, self.num_keys :] = 0  # a weight of 0 times NaN is NaN
        return by_head

    def _blocks_seen(self, piece: slice) -> int:
        end: int = self.num_keys - self.num_queries + piece.stop
        return -(-end // self.cache.block_size)

    def _hidden(self, window: int | None, piece: slice, first: int, num_keys: int) -> Tensor:
        """What a piece's queries do not see, made once for all layers: see ``hidden_keys``."""
        first = first if window is None else 0
        hidden = self._masks.get((window, piece.start, first))
        if hidden is None:
            before = self.num_keys - self.num_queries
            positions = torch.arange(before + piece.start, before + piece.stop, device=self.blocks.device)
            hidden = hidden_keys(positions, first, num_keys, window)
            self._masks[window, piece.start, first] = hidden
        return hidden
