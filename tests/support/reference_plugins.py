"""Small honest plugins over the suite's own arithmetic, for tests of the suite and of what uses plugins."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hundredfold.plugin import (
    API_VERSION,
    AttentionBatch,
    AttentionSpec,
    Encoding,
    KVCacheSpec,
    LayerCache,
    Linear,
    LinearSpec,
    Reasons,
)
from hundredfold.plugin.testing import reference_linear


@dataclass
class SlowLinear:
    """The reference as a layer."""

    spec: LinearSpec
    bias: Tensor | None
    nbytes: int = 1
    recipe: str = "float64"

    def __call__(self, x: Tensor) -> Tensor:
        return reference_linear(self.spec.weight, x, self.bias).to(x.dtype)


class SlowKernels:
    """Multiplies by any canonical weight, slowly."""

    name = "slow"
    api_version = API_VERSION
    priority = -1

    def refuses(self, spec: LinearSpec) -> Reasons:
        return [] if spec.dtype.is_floating_point else [f"computes in floats, not in {spec.dtype}"]

    def prepare(self, spec: LinearSpec, bias: Tensor | None) -> Linear:
        return SlowLinear(spec, bias)


class SlowCache:
    """Keys and values as [blocks, block size, kv heads, head dim]."""

    def __init__(self, cache: KVCacheSpec, kind: torch.dtype, num_blocks: int) -> None:
        shape = (num_blocks, cache.block_size, cache.num_kv_heads, cache.head_dim)
        self.keys = torch.zeros(shape, dtype=kind)
        self.values = torch.zeros(shape, dtype=kind)

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def copy_blocks(self, source: Tensor, destination: Tensor) -> None:
        self.keys[destination] = self.keys[source]
        self.values[destination] = self.values[source]


class SlowPlan:
    """One step, row by row."""

    def __init__(self, batch: AttentionBatch, cache: KVCacheSpec) -> None:
        self.batch = batch
        self.block_size = cache.block_size

    def __call__(self, layer: AttentionSpec, cache: LayerCache, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert isinstance(cache, SlowCache)
        cache.keys.flatten(0, 1)[self.batch.slot_mapping] = k.to(cache.keys.dtype)
        cache.values.flatten(0, 1)[self.batch.slot_mapping] = v.to(cache.values.dtype)
        rows = []
        start = 0
        for i, (count, length) in enumerate(zip(self.batch.query_lens, self.batch.seq_lens, strict=True)):
            blocks = self.batch.block_tables[i, : -(-length // self.block_size)].long()
            keys = cache.keys[blocks].flatten(0, 1)[:length]
            values = cache.values[blocks].flatten(0, 1)[:length]
            rows.append(self.attend(layer, q[start : start + count], keys, values).to(q.dtype))
            start += count
        return torch.cat(rows)

    def attend(self, layer: AttentionSpec, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        out = torch.empty(len(q), layer.num_heads, layer.head_dim)
        group = layer.num_heads // layer.num_kv_heads
        for head in range(layer.num_heads):
            scores = q[:, head].double() @ keys[:, head // group].double().T * layer.scale
            if layer.softcap is not None:
                scores = layer.softcap * (scores / layer.softcap).tanh()
            query_at = torch.arange(len(keys) - len(q), len(keys))[:, None]
            key_at = torch.arange(len(keys))[None]
            hidden = key_at > query_at
            if layer.sliding_window is not None:
                hidden |= key_at <= query_at - layer.sliding_window
            scores = scores.masked_fill(hidden, -math.inf)
            if layer.sinks is not None:
                scores = torch.cat([scores, layer.sinks[head].expand(len(q), 1)], 1)
            weights = scores.softmax(-1)[:, : len(keys)]
            out[:, head] = weights @ values[:, head // group].double()
        return out.flatten(1)


class SlowAttention:
    """Paged attention over plain tensors, one row and one head at a time, in float64."""

    name = "slow"
    api_version = API_VERSION
    priority = -1
    plan_type = SlowPlan
    kinds: ClassVar = {Encoding.FP32: torch.float32, Encoding.BF16: torch.bfloat16}

    def refuses(self, layer: AttentionSpec, cache: KVCacheSpec, encoding: Encoding) -> Reasons:
        return [] if encoding in self.kinds else [f"keeps plain floats, not {encoding.value}"]

    def bytes_per_block(self, cache: KVCacheSpec, encoding: Encoding) -> int:
        width = self.kinds[encoding].itemsize
        return 2 * cache.block_size * cache.num_kv_heads * cache.head_dim * width

    def allocate(self, cache: KVCacheSpec, encoding: Encoding, num_blocks: int) -> LayerCache:
        return SlowCache(cache, self.kinds[encoding], num_blocks)

    def plan(self, batch: AttentionBatch, cache: KVCacheSpec, encoding: Encoding) -> SlowPlan:
        return self.plan_type(batch, cache)
