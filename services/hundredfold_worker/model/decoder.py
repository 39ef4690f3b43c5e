"""The decoder: a flat batch of tokens through every layer, to the logits of the positions asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hundredfold.plugin import (
    Activation,
    AttentionBatch,
    AttentionPlugin,
    AttentionSpec,
    Elementwise,
    Linear,
    PlannedAttention,
    Rotation,
)
from hundredfold_worker.model.cache import BackendCachePlanner
from hundredfold_worker.model.embedding import Embedding
from hundredfold_worker.model.loaded import PagedCache
from hundredfold_worker.model.rotary import RotaryTable


@dataclass(frozen=True, slots=True)
class Norm:
    """Root-mean-square norm, computed in float32."""

    operations: Elementwise
    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` [..., n] to the same shape."""
        return self.operations.rms_norm(x, self.weight, self.eps)

    def of_sum(self, residual: Tensor, x: Tensor | None) -> Tensor:
        """Add ``x`` to ``residual`` [T, n] in place and norm the sum; ``None`` adds nothing."""
        if x is None:
            return self.operations.rms_norm(residual, self.weight, self.eps)
        return self.operations.add_rms_norm(residual, x, self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class QueryKeyNorms:
    """Norms of queries and keys before they rotate."""

    query: Norm
    key: Norm
    by_head: bool
    """Whether each head is normed by itself, or a token's heads together."""

    def __call__(self, x: Tensor, num_queries: int) -> Tensor:
        """``x`` [T, heads, head_dim], the first ``num_queries`` heads queries, to a new tensor."""
        parts = x[:, :num_queries], x[:, num_queries:]
        if not self.by_head:
            parts = parts[0].flatten(1), parts[1].flatten(1)
        normed = self.query(parts[0]), self.key(parts[1])
        return torch.cat([part.view(len(x), -1, x.shape[-1]) for part in normed], dim=1)


@dataclass(frozen=True, slots=True)
class Projection:
    """Products of one input with several weights, side by side; one product where formats could be joined."""

    parts: tuple[Linear, ...]
    widths: tuple[int, ...]
    """Output features of each part."""

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` [T, K] to [T, N of all parts]."""
        if len(self.parts) == 1:
            return self.parts[0](x)
        return torch.cat([part(x) for part in self.parts], dim=-1)


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Attention, residual; gated feed-forward. Its last addition is the next norm's to make.

    Which norms there are is the architecture's: before a part, after it, both.
    """

    operations: Elementwise
    spec: AttentionSpec
    rotary: int | None
    """Which of the decoder's tables rotates queries and keys."""
    attention_norm: Norm | None
    qkv: Projection
    query_key_norm: QueryKeyNorms | None
    attention_output: Linear
    attention_post_norm: Norm | None
    mlp_norm: Norm | None
    gate_up: Projection
    activation: Activation
    down: Linear
    mlp_post_norm: Norm | None

    def queries_keys_values(
        self, hidden: Tensor, delta: Tensor | None, rotations: Sequence[Rotation]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Add ``delta`` to ``hidden``; rotated queries and keys, and values, each [T, heads, head_dim]."""
        spec = self.spec
        normed = _norm_of_sum(self.attention_norm, hidden, delta)
        joined = self.qkv(normed).view(len(hidden), -1, spec.head_dim)
        first_value = spec.num_heads + spec.num_kv_heads
        turning = joined[:, :first_value]
        if self.query_key_norm is not None:
            turning = self.query_key_norm(turning, spec.num_heads)
        if self.rotary is not None:
            self.operations.rotate(turning, rotations[self.rotary])
        return turning[:, : spec.num_heads], turning[:, spec.num_heads :], joined[:, first_value:]

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Everything after attention: adds to ``hidden`` [T, hidden], returns what is still to be added."""
        delta = self.attention_output(attended)
        if self.attention_post_norm is not None:
            delta = self.attention_post_norm(delta)
        gate_up = self.gate_up(_norm_of_sum(self.mlp_norm, hidden, delta))
        delta = self.down(self.operations.gated(gate_up, self.activation))
        return delta if self.mlp_post_norm is None else self.mlp_post_norm(delta)


def _norm_of_sum(norm: Norm | None, residual: Tensor, x: Tensor | None) -> Tensor:
    """Add ``x`` to ``residual`` in place; the sum, normed where there is a norm."""
    if norm is not None:
        return norm.of_sum(residual, x)
    return residual if x is None else residual.add_(x)


@dataclass(frozen=True, slots=True)
class Decoder:
    """Embedding, layers, norm, output layer."""

    embedding: Embedding
    embedding_scale: float
    rotaries: tuple[RotaryTable, ...]
    layers: tuple[DecoderLayer, ...]
    final_norm: Norm
    head: Linear
    logit_softcap: float | None
    attention: AttentionPlugin
    cache_planner: BackendCachePlanner

    @property
    def hidden_size(self) -> int:
        """Columns of a token between layers."""
        return len(self.final_norm.weight)

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""
        return len(self.embedding)

    def embed(self, token_ids: Tensor) -> Tensor:
        """What enters the first layer, new: ``token_ids`` int64[T] to [T, hidden]."""
        hidden = self.embedding(token_ids)
        return hidden if self.embedding_scale == 1.0 else hidden.mul_(self.embedding_scale)

    def forward(
        self, token_ids: Tensor, batch: AttentionBatch, cache: PagedCache, logits_at: Tensor
    ) -> Tensor:
        """Call every operation from here. See ``LoadedModel.forward``."""
        hidden = self.embed(token_ids)
        rotations = [table.at(batch.positions) for table in self.rotaries]
        attend: PlannedAttention = self.attention.plan(
            batch, self.cache_planner.spec, self.cache_planner.encoding
        )
        delta: Tensor | None = None
        last = len(self.layers) - 1
        for index, (layer, layer_cache) in enumerate(zip(self.layers, cache.layers, strict=True)):
            q, k, v = layer.queries_keys_values(hidden, delta, rotations)
            attended = attend(layer.spec, layer_cache, q, k, v)
            if index == last:
                # the cache is complete; what follows is needed only where logits are
                if not len(logits_at):
                    return hidden.new_empty((0, self.vocab_size))
                hidden, attended = hidden.index_select(0, logits_at), attended.index_select(0, logits_at)
            delta = layer.finish(hidden, attended)
        return self.head(self.final_norm.of_sum(hidden, delta))
