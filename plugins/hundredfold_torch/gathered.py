"""Attention of many rows with few queries each: decode steps and verified drafts.

What lies in a block beyond a row's tokens may be anything, NaN included: its scores are overwritten before
the softmax, and its values are not read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from hundredfold.plugin import AttentionSpec, KVCacheSpec
from hundredfold_torch.paged_cache import TorchLayerCache, block_rows, token_rows
from hundredfold_torch.spelled_out import LEAST_QUERIES, RUN, hidden_keys, sum_values, weights_of
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
        scores = self._scores(layer, cache.keys, q).view(rows, heads, queries, self.num_keys)
        weights = weights_of(layer, scores, self._hidden_keys(layer.sliding_window))
        if self.queries.device.type == "cpu":
            mixed = self._values_in_place(layer, cache.values, weights)
        else:
            mixed = self._values_gathered(layer, cache.values, weights)
        mixed = mixed.view(rows, heads, queries, head_dim).transpose(1, 2)
        out.index_copy_(0, self.queries, mixed.reshape(-1, heads, head_dim).to(out.dtype))

    def _scores(self, layer: AttentionSpec, keys: Tensor, q: Tensor) -> Tensor:
        """float32[rows * kv_heads, group * q, keys], contiguous."""
        rows, queries, kv_heads = self.num_rows, self.num_queries, layer.num_kv_heads
        group = layer.num_heads // kv_heads
        own = q.index_select(0, self.queries).view(rows, queries, kv_heads, group, layer.head_dim)
        own = own.permute(0, 2, 3, 1, 4).reshape(rows * kv_heads, group * queries, layer.head_dim)
        own = own.float() * layer.scale
        count = own.shape[1]
        if count < LEAST_QUERIES:
            own = F.pad(own, (0, 0, 0, LEAST_QUERIES - count))
        gathered = self._gather(keys, "keys")
        scores = self._take("scores", (len(own), own.shape[1], self.num_keys), torch.float32)
        torch.bmm(own, gathered.transpose(1, 2), out=scores)
        return scores if count == own.shape[1] else scores[:, :count].contiguous()

    def _values_in_place(self, layer: AttentionSpec, values: Tensor, weights: Tensor) -> Tensor:
        """Weighted sums as embedding bags: the values are read where they lie, a run of tokens a bag."""
        indices, offsets = self._bag(layer)
        table = values.view(-1, layer.head_dim)
        runs = F.embedding_bag(
            indices,
            table,
            offsets,
            mode="sum",
            per_sample_weights=weights.to(table.dtype).flatten(),
            include_last_offset=True,
        ).view(self.num_rows * layer.num_heads * self.num_queries, -1, layer.head_dim)
        total = runs[:, 0]
        for run in range(1, runs.shape[1]):
            total = total + runs[:, run]
        return total

    def _values_gathered(self, layer: AttentionSpec, values: Tensor, weights: Tensor) -> Tensor:
        gathered = self._gather(values, "values").view(self.num_rows, layer.num_kv_heads, -1, layer.head_dim)
        gathered.masked_fill_(self._padding()[:, None, :, None], 0)  # a weight of 0 times NaN is NaN
        shape = (self.num_rows * layer.num_kv_heads, -1, self.num_keys)
        return sum_values(weights.view(shape), gathered.flatten(0, 1))

    def _gather(self, part: Tensor, name: str) -> Tensor:
        """Blocks of keys or values, float32[rows * kv_heads, num_keys, head_dim]."""
        source = part.view(-1, self.cache.block_size * self.cache.head_dim)
        shape = (len(self._block_rows), source.shape[1])
        gathered = self._take(name, shape, part.dtype)
        torch.index_select(source, 0, self._block_rows, out=gathered)
        if part.dtype != torch.float32:
            gathered = self._take(name, shape, torch.float32).copy_(gathered)
        return gathered.view(-1, self.num_keys, self.cache.head_dim)

    def _hidden_keys(self, sliding_window: int | None) -> Tensor:
        """bool[rows, 1, q, keys]; the same for every layer with this window."""
        hidden = self._hidden.get(sliding_window)
        if hidden is None:
            steps = torch.arange(self.num_queries, device=self.ends.device)
            positions = self.ends[:, None] - self.num_queries + steps
            hidden = hidden_keys(positions, self.num_keys, sliding_window)[:, None]
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
            starts = torch.arange(0, len(indices), self.num_keys, device=device)
            runs = torch.arange(0, self.num_keys, RUN, device=device)
            offsets = F.pad((starts[:, None] + runs).flatten(), (0, 1), value=len(indices))
            bag = self._bags[group] = (indices, offsets)
        return bag

    def _take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return self.workspace.take(name, shape, dtype, self.ends.device)
