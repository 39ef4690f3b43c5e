"""A tensor's bytes as blocks, and what blocks are made of: halves, nibbles, planes of bits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hundredfold.plugin import LayerRequest, StoredTensor

Blocks = npt.NDArray[np.uint8]
"""uint8[rows, blocks of a row, bytes of a block], or some of a block's bytes."""

_LOW_HALVES = np.uint64(0x0F0F0F0F0F0F0F0F)


def blocks_of(layer: LayerRequest, stored: StoredTensor, columns: int, nbytes: int) -> Blocks:
    """The layer in blocks of ``columns`` numbers in ``nbytes`` bytes. Raises ``ValueError`` when none fit."""
    rows, width = layer.shape
    where = f"layer '{layer.name}': tensor '{stored.name}'"
    if width % columns:
        raise ValueError(
            f"{where} has rows of {width}, no multiple of {stored.encoding}'s block of {columns}"
        )
    wanted = rows * (width // columns) * nbytes
    if stored.raw.nbytes != wanted:
        raise ValueError(
            f"{where} has {stored.raw.nbytes} bytes, {stored.encoding} of shape {layer.shape} takes {wanted}"
        )
    return stored.raw.reshape(rows, width // columns, nbytes)


def halves(blocks: Blocks, at: int) -> Tensor:
    """The float16 at byte ``at`` of each block, [rows, blocks of a row]."""
    return torch.from_numpy(blocks[..., at : at + 2].copy()).view(torch.float16).squeeze(-1)


def nibbles(packed: Blocks) -> Blocks:
    """[rows, blocks, 16] to [rows, blocks, 32]: the low halves are a block's first 16 codes."""
    words = np.ascontiguousarray(packed).view(np.uint64)  # eight codes at a time
    codes = np.empty((*words.shape[:-1], 4), dtype=np.uint64)
    np.bitwise_and(words, _LOW_HALVES, out=codes[..., :2])
    np.bitwise_and(words >> np.uint64(4), _LOW_HALVES, out=codes[..., 2:])
    return codes.view(np.uint8)


def planes(packed: Blocks, width: int, bits: int) -> Blocks:
    """[rows, blocks, n] to [rows, blocks, n * 8 / bits].

    Each run of ``width`` bytes holds 8 / ``bits`` runs of as many codes, the first in the lowest bits.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    runs = packed.reshape(*packed.shape[:2], -1, 1, width)
    return ((runs >> shifts) & np.uint8((1 << bits) - 1)).reshape(*packed.shape[:2], -1)


def by_row(codes: npt.NDArray[np.uint8] | npt.NDArray[np.int8]) -> Tensor:
    """[rows, blocks, codes of a block] to a tensor [rows, columns]."""
    return torch.from_numpy(codes).flatten(1)


def times(block_scale: Tensor, group_scales: npt.NDArray[np.uint8] | npt.NDArray[np.int8]) -> Tensor:
    """Each group's scale: float16[rows, blocks] times whole numbers [rows, blocks, groups of a block].

    float32[rows, groups], exact: a half has 11 bits and a number at most 8.
    """
    return (block_scale.float()[..., None] * torch.from_numpy(group_scales).float()).flatten(1)
