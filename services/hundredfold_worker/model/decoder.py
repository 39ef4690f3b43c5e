"""The decoder: a flat batch of tokens through every layer, to the logits of the positions asked for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hundredfold.plugin import AttentionBatch, AttentionPlugin, AttentionSpec, Linear, PlannedAttention
from hundredfold_worker.model.cache import BackendCachePlanner
from hundredfold_worker.model.loaded import PagedCache
from hundredfold_worker.model.rotary import RotaryTable, Rotation


@dataclass(frozen=True, slots=True)
class Norm:
    """Root-mean-square norm, computed in float32."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` [T, hidden] in, the same out."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


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
    """Norm, attention, residual; norm, gated feed-forward, residual."""

    spec: AttentionSpec
    attention_norm: Norm
    qkv: Projection
    attention_output: Linear
    mlp_norm: Norm
    gate_up: Projection
    down: Linear

    def queries_keys_values(self, hidden: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values, each [T, heads, head_dim]."""
        spec = self.spec
        joined = self.qkv(self.attention_norm(hidden)).view(len(hidden), -1, spec.head_dim)
        turned = rotation(joined[:, : spec.num_heads + spec.num_kv_heads])
        return (
            turned[:, : spec.num_heads],
            turned[:, spec.num_heads :],
            joined[:, spec.num_heads + spec.num_kv_heads :],
        )

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Everything after attention; ``hidden`` [T, hidden] is used up."""
        hidden = hidden.add_(self.attention_output(attended))
        gate, up = self.gate_up(self.mlp_norm(hidden)).chunk(2, dim=-1)
        return hidden.add_(self.down(F.silu(gate).mul_(up)))


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
        last = len(self.layers) - 1
        for index, (layer, layer_cache) in enumerate(zip(self.layers, cache.layers, strict=True)):
            q, k, v = layer.queries_keys_values(hidden, rotation)
            attended = attend(layer.spec, layer_cache, q, k, v)
            if index == last:
                # the cache is complete; what follows is needed only where logits are
                if not len(logits_at):
                    return hidden.new_empty((0, len(self.embedding)), dtype=torch.float32)
                hidden, attended = hidden.index_select(0, logits_at), attended.index_select(0, logits_at)
            hidden = layer.finish(hidden, attended)
        return self.head(self.final_norm(hidden)).float()
