"""Numbers packed into words: integers of 1 to 8 bits, and 4-bit floats."""

from __future__ import annotations

import torch
from torch import Tensor

from hundredfold.plugin import bit_stream

WORD = 32
PIECE = 1 << 22
"""Numbers that are unpacked at a time."""

FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
"""What the sixteen codes of e2m1 stand for, float32."""


def words_for(count: int, bits: int) -> int:
    """Words of 32 bits that hold ``count`` numbers, without a gap between them."""
    return -(-count * bits // WORD)


def unpack(words: Tensor, count: int, bits: int) -> Tensor:
    """int32[R, words] to uint8[R, count]: the lowest bits first, numbers may lie across words."""
    codes = torch.empty((len(words), count), dtype=torch.uint8)
    rows = max(1, PIECE // count)
    for first in range(0, len(words), rows):
        piece = slice(first, first + rows)
        codes[piece] = bit_stream.unpack(words[piece].contiguous().view(torch.uint8), bits, count)
    return codes


def unpack_columns(words: Tensor, count: int, bits: int) -> Tensor:
    """int32[words, C] to uint8[count, C]: the same, packed along the first dimension."""
    return unpack(words.T, count, bits).T.contiguous()


def unpack_fp4(packed: Tensor) -> Tensor:
    """uint8[R, C / 2] to float32[R, C]: the low half of a byte first."""
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)
    return FP4[codes.int()]


def power_of_two(exponents: Tensor) -> Tensor:
    """uint8 (e8m0) to float32: ``2 ** (exponent - 127)``, exact; 255 becomes NaN."""
    bits = exponents.int() << 23
    bits[exponents == 0] = 1 << 22  # 2 ** -127 is below the normal numbers
    powers = bits.view(torch.float32)
    powers[exponents == 255] = torch.nan
    return powers
