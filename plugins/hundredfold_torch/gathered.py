"""Attention of many rows with few queries each: decode steps and verified drafts.

What lies in a block beyond a row's tokens may be anything, NaN included: its scores are overwritten before
the softmax, and its values are not read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from hundredfold.plugin import AttentionSpec, KVCacheSpec
from hundredfold_torch.paged_cache import Part, TorchLayerCache, block_rows, token_rows
from hundredfold_torch.same_bits import same_bits_for
from hundredfold_torch.spelled_out import (
    hidden_keys,
    run_offsets,
    scores_of,
    sum_bags,
    sum_values,
    weights_of,
)
from hundredfold_torch.workspace import Workspace


@dataclass(slots=True)
class GatheredRows:
    """Rows with the same number of queries, padded to the longest of them."""

    cache: KVCacheSpec
    queries: Tensor
    """int64[rows * q]: the flat positions of the queries."""
    ends: Tensor
    """int64[rows]: tokens that a row's last query sees."""
    blocks: Tensor
    """int32[rows, n]: as many blocks as the longest row has."""
    seen_by_all: int
    """Leading keys that every query sees but for a window."""
    workspace: Workspace
    _hidden: dict[int | None, Tensor] = field(default_factory=dict)
    _bags: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    _block_rows: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self._block_rows = block_rows(self.blocks, self.cache)

    @property
    def num_rows(self) -> int:
        """Rows."""
        return len(self.ends)

    @property
    def num_queries(self) -> int:
        """Queries of each row."""
        return len(self.queries) // len(self.ends)

    @property
    def num_keys(self) -> int:
        """Keys that each row is padded to."""
        return self.blocks.shape[1] * self.cache.block_size

    def attend(self, layer: AttentionSpec, cache: TorchLayerCache, q: Tensor, out: Tensor) -> None:
        """Fill the rows' places in ``out``; both [tokens, num_heads, head_dim]."""
        rows, queries, heads, head_dim = self.num_rows, self.num_queries, layer.num_heads, layer.head_dim
        keep = same_bits_for(q, cache.keys)
        own = q.index_select(0, self.queries).view(rows, queries, layer.num_kv_heads, -1, head_dim)
        own = (
            own.permute(0, 2, 3, 1, 4).reshape(rows * layer.num_kv_heads, -1, head_dim).float() * layer.scale
        )
        scores = scores_of(own, self._gather(cache.keys, "keys"), keep.least_rows)
        scores = scores.view(rows, heads, queries, self.num_keys)
        weights = weights_of(layer, scores, self._hidden_keys(layer.sliding_window))
        if q.device.type == "cpu" and keep.bags and cache.values.scales is None:
            table = cache.values.codes.view(-1, head_dim)
            indices, offsets = self._bag(layer)
            mixed = sum_bags(
                weights.to(table.dtype).flatten(), table, indices, offsets, rows * heads * queries
            )
        else:
            values = self._gather(cache.values, "values").view(rows, layer.num_kv_heads, -1, head_dim)
            values.masked_fill_(self._padding()[:, None, :, None], 0)  # a weight of 0 times NaN is NaN
            by_key_head = weights.view(rows * layer.num_kv_heads, -1, self.num_keys)
            mixed = sum_values(by_key_head, values.flatten(0, 1), keep.least_rows)
        mixed = mixed.reshape(rows, heads, queries, head_dim).transpose(1, 2)
        out.index_copy_(0, self.queries, mixed.reshape(-1, heads, head_dim).to(out.dtype))

    def _gather(self, part: Part, name: str) -> Tensor:
        """Blocks of keys or values, float32[rows * kv_heads, num_keys, head_dim]."""
        source = part.runs
        gathered = self._take(name, (len(self._block_rows), source.shape[1]), source.dtype)
        torch.index_select(source, 0, self._block_rows, out=gathered)
        if part.scales is not None:
            gathered = part.decode(gathered, self._block_rows)
        elif source.dtype != torch.float32:
            gathered = self._take(name, tuple(gathered.shape), torch.float32).copy_(gathered)
        return gathered.view(-1, self.num_keys, self.cache.head_dim)

    def _hidden_keys(self, sliding_window: int | None) -> Tensor:
        """bool[rows, 1, q, last keys]; the same for every layer with this window."""
        hidden = self._hidden.get(sliding_window)
        if hidden is None:
            steps = torch.arange(self.num_queries, device=self.ends.device)
            positions = self.ends[:, None] - self.num_queries + steps
            first = self.seen_by_all if sliding_window is None else 0
            hidden = hidden_keys(positions, first, self.num_keys, sliding_window)[:, None]
            self._hidden[sliding_window] = hidden
        return hidden

    def _padding(self) -> Tensor:
        """bool[rows, keys]: beyond a row's tokens."""
        return torch.arange(self.num_keys, device=self.ends.device) >= self.ends[:, None]

    def _bag(self, layer: AttentionSpec) -> tuple[Tensor, Tensor]:
        """Cache rows of every (row, head, query)'s tokens, and where each run of them begins."""
        group = layer.num_heads // layer.num_kv_heads
        bag = self._bags.get(group)
        if bag is None:
            size, queries, device = self.cache.block_size, self.num_queries, self.blocks.device
            slots = self.blocks.long()[:, :, None] * size + torch.arange(size, device=device)
            slots = slots.flatten(1)
            slots = torch.where(
                self._padding(), slots[:, :1], slots
            )  # weight 0, and a token of the row's own
            rows = token_rows(slots, self.cache).transpose(1, 2)[:, :, None, None]
            indices = rows.expand(-1, -1, group, queries, -1).flatten()
            offsets = run_offsets(len(indices) // self.num_keys, self.num_keys, device)
            bag = self._bags[group] = (indices, offsets)
        return bag

    def _take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return self.workspace.take(name, shape, dtype, self.ends.device)
