"""Blocks of 32 with a scale, and a minimum in some: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0."""

from __future__ import annotations

import numpy as np
import torch

from hundredfold.plugin import GroupedIntWeight, LayerRequest, StoredTensor, Zero
from hundredfold_gguf.blocks import Blocks, blocks_of, by_row, halves, nibbles

BLOCK = 32
"""Columns that share a scale."""


def q4_0(layer: LayerRequest, stored: StoredTensor) -> GroupedIntWeight:
    """``scale * (code - 8)``: half scale, 16 bytes of codes."""
    blocks = blocks_of(layer, stored, BLOCK, 18)
    scales = halves(blocks, 0)
    zeros = torch.full_like(scales, 8)
    return GroupedIntWeight(by_row(nibbles(blocks[..., 2:])), scales, zeros, 4, BLOCK, Zero.POINT)


def q4_1(layer: LayerRequest, stored: StoredTensor) -> GroupedIntWeight:
    """``scale * code + minimum``: half scale, half minimum, 16 bytes of codes."""
    blocks = blocks_of(layer, stored, BLOCK, 20)
    codes = by_row(nibbles(blocks[..., 4:]))
    return GroupedIntWeight(codes, halves(blocks, 0), halves(blocks, 2), 4, BLOCK, Zero.OFFSET)


def q5_0(layer: LayerRequest, stored: StoredTensor) -> GroupedIntWeight:
    """``scale * (code - 16)``: half scale, 4 bytes of fifth bits, 16 bytes of the other four."""
    blocks = blocks_of(layer, stored, BLOCK, 22)
    scales = halves(blocks, 0)
    zeros = torch.full_like(scales, 16)
    return GroupedIntWeight(by_row(_five_bits(blocks[..., 2:])), scales, zeros, 5, BLOCK, Zero.POINT)


def q5_1(layer: LayerRequest, stored: StoredTensor) -> GroupedIntWeight:
    """``scale * code + minimum``: half scale, half minimum, then as Q5_0."""
    blocks = blocks_of(layer, stored, BLOCK, 24)
    codes = by_row(_five_bits(blocks[..., 4:]))
    return GroupedIntWeight(codes, halves(blocks, 0), halves(blocks, 2), 5, BLOCK, Zero.OFFSET)


def q8_0(layer: LayerRequest, stored: StoredTensor) -> GroupedIntWeight:
    """``scale * code``: half scale, 32 signed codes."""
    blocks = blocks_of(layer, stored, BLOCK, 34)
    codes = by_row(blocks[..., 2:].copy().view(np.int8))
    return GroupedIntWeight(codes, halves(blocks, 0), None, 8, BLOCK, Zero.POINT)


def _five_bits(packed: Blocks) -> Blocks:
    high = np.unpackbits(packed[..., :4], axis=-1, bitorder="little")
    return nibbles(packed[..., 4:]) | (high << np.uint8(4))
