"""The decoder: a flat batch of tokens through every layer, to the logits of the positions asked for."""

from __future__ import annotations

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
class Projection:
    """Products of one input with several weights, side by side; one product where formats could be joined."""

    parts: tuple[Linear, ...]

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` [T, K] to [T, N of all parts]."""
        if len(self.parts) == 1:
            return self.parts[0](x)
        return torch.cat([part(x) for part in self.parts], dim=-1)


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Norm, attention, residual; norm, gated feed-forward. Its last addition is the next norm's to make."""

    operations: Elementwise
    spec: AttentionSpec
    attention_norm: Norm
    qkv: Projection
    attention_output: Linear
    mlp_norm: Norm
    gate_up: Projection
    activation: Activation
    down: Linear

    def queries_keys_values(
        self, hidden: Tensor, delta: Tensor | None, rotation: Rotation
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Add ``delta`` to ``hidden``; rotated queries and keys, and values, each [T, heads, head_dim]."""
        spec = self.spec
        joined = self.qkv(self.attention_norm.of_sum(hidden, delta)).view(len(hidden), -1, spec.head_dim)
        first_value = spec.num_heads + spec.num_kv_heads
        self.operations.rotate(joined[:, :first_value], rotation)
        return joined[:, : spec.num_heads], joined[:, spec.num_heads : first_value], joined[:, first_value:]

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Everything after attention: adds to ``hidden`` [T, hidden], returns what is still to be added."""
        normed = self.mlp_norm.of_sum(hidden, self.attention_output(attended))
        return self.down(self.operations.gated(self.gate_up(normed), self.activation))


@dataclass(frozen=True, slots=True)
class Decoder:
    """Embedding, layers, norm, output layer."""

    embedding: Tensor
    """[vocabulary, hidden] in the compute type."""
    rotary: RotaryTable
    layers: tuple[DecoderLayer, ...]
    final_norm: Norm
    head: Linear
    attention: AttentionPlugin
    cache_planner: BackendCachePlanner

    @torch.inference_mode()
    def forward(
        self, token_ids: Tensor, batch: AttentionBatch, cache: PagedCache, logits_at: Tensor
    ) -> Tensor:
        """See ``LoadedModel.forward``."""
        hidden = self.embedding.index_select(0, token_ids)
        rotation = self.rotary.at(batch.positions)
        attend: PlannedAttention = self.attention.plan(
            batch, self.cache_planner.spec, self.cache_planner.encoding
        )
        delta: Tensor | None = None
        last = len(self.layers) - 1
        for index, (layer, layer_cache) in enumerate(zip(self.layers, cache.layers, strict=True)):
            q, k, v = layer.queries_keys_values(hidden, delta, rotation)
            attended = attend(layer.spec, layer_cache, q, k, v)
            if index == last:
                # the cache is complete; what follows is needed only where logits are
                if not len(logits_at):
                    return hidden.new_empty((0, len(self.embedding)), dtype=torch.float32)
                hidden, attended = hidden.index_select(0, logits_at), attended.index_select(0, logits_at)
            delta = layer.finish(hidden, attended)
        return self.head(self.final_norm.of_sum(hidden, delta)).float()
