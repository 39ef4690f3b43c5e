"""Blocks of 256 in groups, whose scales are whole numbers times the block's: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K.

A group's scale and offset are products of a half and a number of at most 8 bits: exact in float32.
"""

from __future__ import annotations

import numpy as np

from hundredfold.plugin import GroupedIntWeight, LayerRequest, StoredTensor, Zero
from hundredfold_gguf.blocks import Blocks, blocks_of, by_row, halves, planes, times

BLOCK = 256


def q2_k(layer: LayerRequest, stored: StoredTensor) -> GroupedIntWeight:
    """Groups of 16, 2 bits, ``scale * code - minimum``; scales and minima of 4 bits."""
    blocks = blocks_of(layer, stored, BLOCK, 84)
    numbers, codes = blocks[..., :16], planes(blocks[..., 16:80], 32, 2)
    scales = times(halves(blocks, 80), numbers & np.uint8(15))
    minima = times(halves(blocks, 82), numbers >> np.uint8(4))
    return GroupedIntWeight(by_row(codes), scales, -minima, 2, 16, Zero.OFFSET)


def q3_k(layer: LayerRequest, stored: StoredTensor) -> GroupedIntWeight:
    """Groups of 16, 3 bits, ``scale * (code - 4)``; scales of 6 bits, signed."""
    blocks = blocks_of(layer, stored, BLOCK, 110)
    codes = planes(blocks[..., 32:96], 32, 2) | (planes(blocks[..., :32], 32, 1) << np.uint8(2))
    low, high = planes(blocks[..., 96:104], 8, 4), planes(blocks[..., 104:108], 4, 2)
    numbers = (low | (high << np.uint8(4))).astype(np.int8) - np.int8(32)
    signed = codes.astype(np.int8) - np.int8(4)
    return GroupedIntWeight(by_row(signed), times(halves(blocks, 108), numbers), None, 3, 16, Zero.POINT)


def q4_k(layer: LayerRequest, stored: StoredTensor) -> GroupedIntWeight:
    """Groups of 32, 4 bits, ``scale * code - minimum``; scales and minima of 6 bits."""
    blocks = blocks_of(layer, stored, BLOCK, 144)
    return _with_minima(blocks, planes(blocks[..., 16:], 32, 4), 4)


def q5_k(layer: LayerRequest, stored: StoredTensor) -> GroupedIntWeight:
    """As Q4_K, with a fifth bit of each code in 32 bytes before the others."""
    blocks = blocks_of(layer, stored, BLOCK, 176)
    high = planes(blocks[..., 16:48], 32, 1)
    return _with_minima(blocks, planes(blocks[..., 48:], 32, 4) | (high << np.uint8(4)), 5)


def q6_k(layer: LayerRequest, stored: StoredTensor) -> GroupedIntWeight:
    """Groups of 16, 6 bits, ``scale * (code - 32)``; scales of 8 bits, signed."""
    blocks = blocks_of(layer, stored, BLOCK, 210)
    codes = planes(blocks[..., :128], 64, 4) | (planes(blocks[..., 128:192], 32, 2) << np.uint8(4))
    numbers = blocks[..., 192:208].copy().view(np.int8)
    signed = codes.astype(np.int8) - np.int8(32)
    return GroupedIntWeight(by_row(signed), times(halves(blocks, 208), numbers), None, 6, 16, Zero.POINT)


def _with_minima(blocks: Blocks, codes: Blocks, bits: int) -> GroupedIntWeight:
    """Half scale, half minimum, and 12 bytes of eight scales and eight minima of 6 bits."""
    first, second, third = (blocks[..., at : at + 4] for at in (4, 8, 12))
    scales = np.concatenate((first & 63, (third & 15) | ((first >> 2) & 48)), axis=-1)
    minima = np.concatenate((second & 63, (third >> 4) | ((second >> 2) & 48)), axis=-1)
    offsets = -times(halves(blocks, 2), minima)
    return GroupedIntWeight(by_row(codes), times(halves(blocks, 0), scales), offsets, bits, 32, Zero.OFFSET)
