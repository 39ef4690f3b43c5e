"""Attention spelled out, for many rows at once: gather the keys, score, mask, softmax, weigh the values.

Serves rows with few queries (decode steps, verified drafts), and pieces of long rows whose layer has a
soft-cap or sinks. What lies in a block beyond a row's tokens may be anything, NaN included: its scores are
overwritten before the softmax, and its values are never read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from hundredfold.plugin import AttentionSpec, KVCacheSpec
from hundredfold_torch.paged_cache import TorchLayerCache, block_rows, token_rows
from hundredfold_torch.workspace import Workspace

MAX_BAG_QUERIES = 8
"""Above this many queries a row, gathering the values once beats reading them anew for each query."""


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
        rows, queries, kv_heads = self.num_rows, self.num_queries, layer.num_kv_heads
        group, head_dim = layer.num_heads // kv_heads, layer.head_dim
        own = q.index_select(0, self.queries).view(rows, queries, kv_heads, group, head_dim)
        own = own.permute(0, 2, 3, 1, 4).reshape(rows * kv_heads, group * queries, head_dim)
        keys = self._gather(cache.keys, "keys", torch.float32)
        scores = self._take("scores", (rows * kv_heads, group * queries, self.num_keys), torch.float32)
        torch.bmm(own.float() * layer.scale, keys.transpose(1, 2), out=scores)
        weights = self._softmax(layer, scores.view(rows, kv_heads * group, queries, self.num_keys))
        if self.queries.device.type == "cpu" and queries <= MAX_BAG_QUERIES:
            mixed = self._values_in_place(layer, cache.values, weights)
        else:
            mixed = self._values_gathered(layer, cache.values, weights)
        mixed = mixed.view(rows, kv_heads * group, queries, head_dim).transpose(1, 2)
        out.index_copy_(0, self.queries, mixed.reshape(-1, kv_heads * group, head_dim).to(out.dtype))

    def _softmax(self, layer: AttentionSpec, scores: Tensor) -> Tensor:
        """Scores [rows, heads, q, keys] to weights, in place where that can be."""
        if layer.softcap is not None:
            scores.div_(layer.softcap).tanh_().mul_(layer.softcap)
        scores.masked_fill_(self._hidden_keys(layer.sliding_window), float("-inf"))
        if layer.sinks is None:
            return torch.softmax(scores, -1, out=scores)
        # softmax over the keys and one score more = softmax over the keys, times the share that is theirs
        share = torch.sigmoid(scores.logsumexp(-1, keepdim=True) - layer.sinks.float()[:, None, None])
        return torch.softmax(scores, -1, out=scores).mul_(share)

    def _values_in_place(self, layer: AttentionSpec, values: Tensor, weights: Tensor) -> Tensor:
        """Weighted sums as embedding bags: the values are read where they lie, in the order of the tokens."""
        indices, offsets = self._bag(layer)
        table = values.view(-1, layer.head_dim)
        return F.embedding_bag(
            indices,
            table,
            offsets,
            mode="sum",
            per_sample_weights=weights.to(table.dtype).flatten(),
            include_last_offset=True,
        )

    def _values_gathered(self, layer: AttentionSpec, values: Tensor, weights: Tensor) -> Tensor:
        rows, kv_heads = self.num_rows, layer.num_kv_heads
        gathered = self._gather(values, "values", torch.float32).view(rows, kv_heads, -1, layer.head_dim)
        gathered.masked_fill_(self._padding()[:, None, :, None], 0)  # a weight of 0 times NaN is NaN
        shape = (rows * kv_heads, -1, self.num_keys)
        return torch.bmm(weights.reshape(shape), gathered.flatten(0, 1))

    def _gather(self, part: Tensor, name: str, dtype: torch.dtype) -> Tensor:
        """Blocks of keys or values as ``dtype`` [rows * kv_heads, num_keys, head_dim]."""
        source = part.view(-1, self.cache.block_size * self.cache.head_dim)
        gathered = self._take(name, (len(self._block_rows), source.shape[1]), part.dtype)
        torch.index_select(source, 0, self._block_rows, out=gathered)
        if part.dtype != dtype:
            gathered = self._take(name, (len(self._block_rows), source.shape[1]), dtype).copy_(gathered)
        return gathered.view(-1, self.num_keys, self.cache.head_dim)

    def _hidden_keys(self, sliding_window: int | None) -> Tensor:
        """bool[rows, 1, q, keys]: what a query does not see; the same for every layer with this window."""
        hidden = self._hidden.get(sliding_window)
        if hidden is None:
            device = self.ends.device
            positions = self.ends[:, None] - self.num_queries + torch.arange(self.num_queries, device=device)
            distance = positions[:, :, None] - torch.arange(self.num_keys, device=device)
            hidden = distance < 0
            if sliding_window is not None:
                hidden |= distance >= sliding_window
            hidden = self._hidden[sliding_window] = hidden[:, None]
        return hidden

    def _padding(self) -> Tensor:
        """bool[rows, keys]: beyond a row's tokens."""
        return torch.arange(self.num_keys, device=self.ends.device) >= self.ends[:, None]

    def _bag(self, layer: AttentionSpec) -> tuple[Tensor, Tensor]:
        """Cache rows of every (row, head, query)'s tokens, and where each such bag begins."""
        group = layer.num_heads // layer.num_kv_heads
        bag = self._bags.get(group)
        if bag is None:
            size, queries = self.cache.block_size, self.num_queries
            slots = self.blocks.long()[:, :, None] * size + torch.arange(size, device=self.blocks.device)
            slots = slots.flatten(1)
            slots = torch.where(
                self._padding(), slots[:, :1], slots
            )  # weight 0, and a token of the row's own
            rows = token_rows(slots, self.cache).transpose(1, 2)[:, :, None, None]
            indices = rows.expand(-1, -1, group, queries, -1).flatten()
            offsets = torch.arange(0, len(indices) + 1, self.num_keys, device=indices.device)
            bag = self._bags[group] = (indices, offsets)
        return bag

    def _take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return self.workspace.take(name, shape, dtype, self.ends.device)
