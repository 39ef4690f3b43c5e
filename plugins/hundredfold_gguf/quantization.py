"""GGUF's tensor types as canonical weights: the simple blocks as they are, the others dequantized.

Block layouts: https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-common.h
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hundredfold.plugin import (
    API_VERSION,
    CanonicalWeight,
    CheckpointInfo,
    DenseWeight,
    GroupedIntWeight,
    LayerRequest,
    Reasons,
    StoredTensor,
    TensorSource,
    Zero,
)
from hundredfold.plugin.reading import find_tensor, read_tensor

BLOCK = 32
"""Columns that share a scale in the types read here."""

_LOW_HALVES = np.uint64(0x0F0F0F0F0F0F0F0F)

Blocks = npt.NDArray[np.uint8]
"""uint8[rows, blocks of a row, bytes of a block]."""


class Gguf:
    """GGUF files: Q4_0, Q4_1 and Q8_0 stay integers, all other types become floats."""

    name = "gguf"
    api_version = API_VERSION

    def refuses(self, checkpoint: CheckpointInfo) -> Reasons:
        """Takes every GGUF file: each tensor carries its type."""
        if checkpoint.container != "gguf":
            return [f"reads gguf files, not {checkpoint.container}"]
        return []

    def bind(self, checkpoint: CheckpointInfo) -> GgufMethod:
        """The method; it needs nothing from the checkpoint."""
        return GgufMethod()


class GgufMethod:
    """Reads ``<layer>.weight`` by its type."""

    def covers(self, layer: LayerRequest) -> bool:
        """Every layer."""
        return True

    def load(self, layer: LayerRequest, tensors: TensorSource) -> CanonicalWeight:
        """The layer's matrix. Raises ``ValueError`` when it is absent, misshapen, cut or of unknown type."""
        stored = find_tensor(layer, tensors)
        if stored.encoding in _READERS:
            return _READERS[stored.encoding](layer, stored)
        return DenseWeight(read_tensor(layer, tensors))


def _q4_0(layer: LayerRequest, stored: StoredTensor) -> GroupedIntWeight:
    """``scale * (code - 8)``: half scale, 16 bytes of codes."""
    blocks = _blocks(layer, stored, 18)
    scales = _halves(blocks, 0)
    zeros = torch.full_like(scales, 8)
    return GroupedIntWeight(_nibbles(blocks[..., 2:]), scales, zeros, 4, BLOCK, Zero.POINT)


def _q4_1(layer: LayerRequest, stored: StoredTensor) -> GroupedIntWeight:
    """``scale * code + minimum``: half scale, half minimum, 16 bytes of codes."""
    blocks = _blocks(layer, stored, 20)
    return GroupedIntWeight(
        _nibbles(blocks[..., 4:]), _halves(blocks, 0), _halves(blocks, 2), 4, BLOCK, Zero.OFFSET
    )


def _q8_0(layer: LayerRequest, stored: StoredTensor) -> GroupedIntWeight:
    """``scale * code``: half scale, 32 signed codes."""
    blocks = _blocks(layer, stored, 34)
    codes = torch.from_numpy(blocks[..., 2:].copy()).view(torch.int8).flatten(1)
    return GroupedIntWeight(codes, _halves(blocks, 0), None, 8, BLOCK, Zero.POINT)


_READERS: dict[str, Callable[[LayerRequest, StoredTensor], GroupedIntWeight]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
}


def _blocks(layer: LayerRequest, stored: StoredTensor, block_bytes: int) -> Blocks:
    rows, columns = layer.shape
    if columns % BLOCK:
        raise ValueError(
            f"layer '{layer.name}': tensor '{stored.name}' has rows of {columns}, "
            f"no multiple of {stored.encoding}'s block of {BLOCK}"
        )
    wanted = rows * (columns // BLOCK) * block_bytes
    if stored.raw.nbytes != wanted:
        raise ValueError(
            f"layer '{layer.name}': tensor '{stored.name}' has {stored.raw.nbytes} bytes, "
            f"{stored.encoding} of shape {layer.shape} takes {wanted}"
        )
    return stored.raw.reshape(rows, columns // BLOCK, block_bytes)


def _halves(blocks: Blocks, at: int) -> Tensor:
    """The float16 at byte ``at`` of each block, [rows, blocks of a row]."""
    return torch.from_numpy(blocks[..., at : at + 2].copy()).view(torch.float16).squeeze(-1)


def _nibbles(packed: Blocks) -> Tensor:
    """uint8[rows, columns]: a block's low halves are its first 16 codes, the high halves the other 16."""
    words = np.ascontiguousarray(packed).view(np.uint64)  # eight codes at a time
    codes = np.empty((*words.shape[:-1], 4), dtype=np.uint64)
    np.bitwise_and(words, _LOW_HALVES, out=codes[..., :2])
    np.bitwise_and(words >> np.uint64(4), _LOW_HALVES, out=codes[..., 2:])
    return torch.from_numpy(codes.view(np.uint8)).flatten(1)
