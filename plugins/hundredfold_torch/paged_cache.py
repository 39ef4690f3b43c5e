"""The torch backend's cache layout: ``[num_blocks, kv_heads, block_size, head_dim]``, keys and values apart.

A (block, head) pair is one contiguous run, so selecting such runs gives contiguous keys and values per head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hundredfold.plugin import Encoding, KVCacheSpec
from hundredfold.plugin.kv_codes import code_bytes, decode, encode, scale_shape

DTYPES = {
    Encoding.FP32: torch.float32,
    Encoding.BF16: torch.bfloat16,
    Encoding.INT8: torch.int8,
    Encoding.FP8: torch.uint8,
    Encoding.FP8_E5M2: torch.uint8,
    Encoding.INT4: torch.uint8,
}
"""What a number is stored as; of int4, two numbers."""

SCALES = {
    Encoding.INT8: torch.float32,
    Encoding.FP8: torch.float32,
    Encoding.FP8_E5M2: torch.float32,
    Encoding.INT4: torch.float16,
}
"""Encodings with scales for each token and kv head, and what they are stored as."""


@dataclass(frozen=True, slots=True)
class Part:
    """Keys or values of one layer."""

    encoding: Encoding
    head_dim: int
    codes: Tensor
    """``DTYPES[encoding]`` [num_blocks, kv_heads, block_size, codes of a head]."""
    scales: Tensor | None
    """``SCALES[encoding]`` [num_blocks, kv_heads, block_size, scales of a head]."""

    @classmethod
    def allocate(cls, cache: KVCacheSpec, encoding: Encoding, num_blocks: int) -> Part:
        """Zeros, so that the pages exist from the start and a later step cannot run out of them."""
        shape = (num_blocks, cache.num_kv_heads, cache.block_size)
        width, own = code_bytes(encoding, cache.head_dim), scale_shape(encoding, cache.head_dim)
        codes = torch.zeros((*shape, width), dtype=DTYPES[encoding], device=cache.device)
        kind = SCALES.get(encoding)
        scales = None if kind is None else torch.zeros((*shape, *own), dtype=kind, device=cache.device)
        return cls(encoding, cache.head_dim, codes, scales)

    @property
    def tensors(self) -> list[Tensor]:
        """What it consists of; the first dimension is the block."""
        return [self.codes] if self.scales is None else [self.codes, self.scales]

    def write(self, rows: Tensor, new: Tensor) -> None:
        """Write ``new`` [tokens, kv_heads, head_dim]; ``rows`` are ``token_rows`` of their slots."""
        width = self.codes.shape[-1]
        if self.scales is None:
            codes = new.to(self.codes.dtype)
        else:
            codes, scales = encode(self.encoding, new)
            own = self.scales.shape[3:]
            self.scales.view(-1, *own).index_copy_(0, rows, scales.reshape(-1, *own))
        self.codes.view(-1, width).index_copy_(0, rows, codes.reshape(-1, width))

    @property
    def runs(self) -> Tensor:
        """The codes as [blocks * kv_heads, codes of a run]: see ``block_rows``."""
        return self.codes.view(-1, self.codes.shape[2] * self.codes.shape[3])

    def decode(self, codes: Tensor, runs: Tensor) -> Tensor:
        """Numbers float32 of ``codes`` [runs, codes of a run], which were selected by ``runs``."""
        if self.scales is None:
            return codes.float()
        size = self.codes.shape[2]
        scales = self.scales.view(-1, *self.scales.shape[2:]).index_select(0, runs)
        return decode(self.encoding, codes.view(len(runs), size, -1), scales, self.head_dim)


@dataclass(frozen=True, slots=True)
class TorchLayerCache:
    """One layer's keys and values."""

    keys: Part
    values: Part

    @classmethod
    def allocate(cls, cache: KVCacheSpec, encoding: Encoding, num_blocks: int) -> TorchLayerCache:
        """An empty cache."""
        return cls(*(Part.allocate(cache, encoding, num_blocks) for _ in range(2)))

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and their scales."""
        return sum(tensor.nbytes for part in (self.keys, self.values) for tensor in part.tensors)

    def copy_blocks(self, source: Tensor, destination: Tensor) -> None:
        """Copy whole blocks; every source is read before a destination is written."""
        for part in (self.keys, self.values):
            for tensor in part.tensors:
                tensor.index_copy_(0, destination, tensor.index_select(0, source))

    def write(self, rows: Tensor, k: Tensor, v: Tensor) -> None:
        """Write ``k`` and ``v`` [tokens, kv_heads, head_dim]; ``rows`` are ``token_rows`` of their slots."""
        self.keys.write(rows, k)
        self.values.write(rows, v)


def token_rows(slots: Tensor, cache: KVCacheSpec) -> Tensor:
    """Where tokens lie in a cache seen as ``[blocks * kv_heads * block_size, ...]``.

    ``slots`` int64[...] are ``block * block_size + offset``; returns int64[..., kv_heads].
    """
    heads = torch.arange(cache.num_kv_heads, device=slots.device)
    block, offset = slots // cache.block_size, slots % cache.block_size
    return (block[..., None] * cache.num_kv_heads + heads) * cache.block_size + offset[..., None]


def block_rows(blocks: Tensor, cache: KVCacheSpec) -> Tensor:
    """Where blocks lie in a cache seen as ``[blocks * kv_heads, ...]``.

    ``blocks`` [rows, n]; returns int64[rows * kv_heads * n], each head's blocks together.
    """
    heads = torch.arange(cache.num_kv_heads, device=blocks.device)
    return (blocks.long()[:, None, :] * cache.num_kv_heads + heads[None, :, None]).flatten()
