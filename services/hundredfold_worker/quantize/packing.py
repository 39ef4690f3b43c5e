"""Codes of few bits in 32-bit words, as gptq and awq checkpoints lay them."""

from __future__ import annotations

import torch
from torch import Tensor

WORD = 32
"""Bits."""

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight neighbouring columns comes first, second, ... in awq's words of 4-bit codes."""


def pack_rows(codes: Tensor, bits: int) -> Tensor:
    """Codes [R, C] below ``2 ** bits`` as one stream of bits a row, lowest first: int32[R, C * bits / 32].

    ``C * bits`` has to be a multiple of 32. With 3 bits codes cross words.
    """
    rows, columns = codes.shape
    digits = (codes.to(torch.int32)[:, :, None] >> torch.arange(bits, dtype=torch.int32)) & 1
    by_word = digits.reshape(rows, columns * bits // WORD, WORD).to(torch.int64)
    words = (by_word << torch.arange(WORD)).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def pack_columns(codes: Tensor, bits: int) -> Tensor:
    """Codes [R, C] as one stream of bits a column, lowest first: int32[R * bits / 32, C]."""
    return pack_rows(codes.T, bits).T.contiguous()


def pack_awq(codes: Tensor, bits: int) -> Tensor:
    """Codes [R, C] as awq lays them, a row a stream: int32[R, C * bits / 32].

    With 4 bits columns have an order of their own; with others none, as GPTQModel writes and reads them.
    """
    if bits != 4:
        return pack_rows(codes, bits)
    rows, columns = codes.shape
    ordered = codes.reshape(rows, columns // 8, 8)[:, :, list(AWQ_ORDER)]
    return pack_rows(ordered.reshape(rows, columns), bits)
