"""The torch backend's cache layout: ``[num_blocks, kv_heads, block_size, head_dim]``, keys and values apart.

A (block, head) pair is one contiguous run, so selecting such runs gives contiguous keys and values per head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hundredfold.plugin import Encoding, KeysAndValues, KVCacheSpec

DTYPES = {Encoding.FP32: torch.float32, Encoding.BF16: torch.bfloat16}


class TorchLayerCache(KeysAndValues):
    """One layer's keys and values."""

    __slots__ = ()

    @classmethod
    def allocate(cls, cache: KVCacheSpec, dtype: torch.dtype, num_blocks: int) -> TorchLayerCache:
        """Zeros, so that the pages exist from the start and a later step cannot run out of them."""
        shape = (num_blocks, cache.num_kv_heads, cache.block_size, cache.head_dim)
        keys, values = (torch.zeros(shape, dtype=dtype, device=cache.device) for _ in range(2))
        return cls(keys, values)

    def write(self, rows: Tensor, k: Tensor, v: Tensor) -> None:
        """Write ``k`` and ``v`` [tokens, kv_heads, head_dim]; ``rows`` are ``token_rows`` of their slots."""
        head_dim = k.shape[-1]
        for part, new in ((self.keys, k), (self.values, v)):
            part.view(-1, head_dim).index_copy_(0, rows, new.reshape(-1, head_dim).to(part.dtype))


def token_rows(slots: Tensor, cache: KVCacheSpec) -> Tensor:
    """Where tokens lie in a cache seen as ``[blocks * kv_heads * block_size, head_dim]``.

    ``slots`` int64[...] are ``block * block_size + offset``; returns int64[..., kv_heads].
    """
    heads = torch.arange(cache.num_kv_heads, device=slots.device)
    block, offset = slots // cache.block_size, slots % cache.block_size
    return (block[..., None] * cache.num_kv_heads + heads) * cache.block_size + offset[..., None]


def block_rows(blocks: Tensor, cache: KVCacheSpec) -> Tensor:
    """Where blocks lie in a cache seen as ``[blocks * kv_heads, block_size * head_dim]``.

    ``blocks`` [rows, n]; returns int64[rows * kv_heads * n], each head's blocks together.
    """
    heads = torch.arange(cache.num_kv_heads, device=blocks.device)
    return (blocks.long()[:, None, :] * cache.num_kv_heads + heads[None, :, None]).flatten()
