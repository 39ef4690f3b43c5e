"""Attention of one row with many queries, a prompt or a piece of one, through torch's fused kernel."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from hundredfold.plugin import AttentionSpec, KVCacheSpec
from hundredfold_torch.gathered import GatheredRows
from hundredfold_torch.paged_cache import TorchLayerCache, block_rows
from hundredfold_torch.workspace import Workspace

MASKED_QUERIES = 256
"""Queries that share a mask; each piece reads only the keys that its last query sees."""
MAX_SCORES = 1 << 22
"""Scores held at once where the fused kernel cannot be used."""


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
    workspace: Workspace
    _masks: dict[tuple[int | None, int], Tensor] = field(default_factory=dict)
    _spelled_out: dict[int, list[GatheredRows]] = field(default_factory=dict)

    def attend(
        self, layer: AttentionSpec, cache: TorchLayerCache, q: Tensor, k: Tensor, v: Tensor, out: Tensor
    ) -> None:
        """Fill the row's places in ``out`` [tokens, num_heads, head_dim]. The cache has ``k`` and ``v``."""
        if layer.softcap is not None or layer.sinks is not None:
            for rows in self._pieces(layer.num_heads):
                rows.attend(layer, cache, q, out)
            return
        own = slice(self.start, self.start + self.num_queries)
        keys, values = (
            self._sequence(part, new[own], q.dtype) for part, new in ((cache.keys, k), (cache.values, v))
        )
        group = layer.num_heads // layer.num_kv_heads
        # a batch of key heads; the queries that share one are its heads, and see it without a copy
        queries = q[own].view(self.num_queries, layer.num_kv_heads, group, layer.head_dim).permute(1, 2, 0, 3)
        keys, values = (part[:, None].expand(-1, group, -1, -1) for part in (keys, values))
        mixed = out[own].view(self.num_queries, layer.num_kv_heads, group, layer.head_dim).permute(1, 2, 0, 3)
        window = layer.sliding_window
        if self.num_queries == self.num_keys and (window is None or window >= self.num_keys):
            causal = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=layer.scale)
            mixed.copy_(causal)
            return
        for first in range(0, self.num_queries, MASKED_QUERIES):
            piece = slice(first, min(first + MASKED_QUERIES, self.num_queries))
            seen = slice(0, self.num_keys - self.num_queries + piece.stop)
            mixed[:, :, piece] = F.scaled_dot_product_attention(
                queries[:, :, piece],
                keys[:, :, seen],
                values[:, :, seen],
                attn_mask=self._mask(window, piece, seen.stop, q.dtype),
                scale=layer.scale,
            )

    def _sequence(self, part: Tensor, new: Tensor, dtype: torch.dtype) -> Tensor:
        """The row's keys or values as the cache holds them, ``dtype`` [kv_heads, num_keys, head_dim]."""
        if self.num_queries == self.num_keys:
            return new.to(part.dtype).to(dtype).transpose(0, 1)
        rows = block_rows(self.blocks[None], self.cache)
        gathered = part.view(-1, self.cache.block_size * self.cache.head_dim).index_select(0, rows)
        by_head = gathered.view(self.cache.num_kv_heads, -1, self.cache.head_dim)
        return by_head[:, : self.num_keys].to(dtype)

    def _mask(self, window: int | None, piece: slice, num_keys: int, dtype: torch.dtype) -> Tensor:
        """What a piece's queries see, [queries, keys]: 0 or -inf; one for all layers with this window."""
        mask = self._masks.get((window, piece.start))
        if mask is None:
            device, before = self.blocks.device, self.num_keys - self.num_queries
            positions = torch.arange(before + piece.start, before + piece.stop, device=device)
            distance = positions[:, None] - torch.arange(num_keys, device=device)
            hidden = distance < 0
            if window is not None:
                hidden |= distance >= window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))
            self._masks[window, piece.start] = mask
        return mask

    def _pieces(self, num_heads: int) -> list[GatheredRows]:
        """The row as rows of fewer queries, so that their scores stay small."""
        pieces = self._spelled_out.get(num_heads)
        if pieces is None:
            most = max(1, MAX_SCORES // (num_heads * self.num_keys))
            pieces = self._spelled_out[num_heads] = [
                self._piece(first, min(most, self.num_queries - first))
                for first in range(0, self.num_queries, most)
            ]
        return pieces

    def _piece(self, first: int, count: int) -> GatheredRows:
        device, end = self.blocks.device, self.num_keys - self.num_queries + first + count
        return GatheredRows(
            cache=self.cache,
            queries=torch.arange(self.start + first, self.start + first + count, device=device),
            ends=torch.tensor([end], device=device),
            blocks=self.blocks[None, : -(-end // self.cache.block_size)],
            workspace=self.workspace,
        )
