"""Eight bits with a scale for each output channel: int8 and float8, and how their inputs are rounded."""

from __future__ import annotations

import torch
from torch import Tensor

STORED = torch.bfloat16
"""The type in which scales of channels are stored: what readers of every kind keep them in."""

LARGEST_INT8 = 127
LARGEST_FLOAT8 = 448.0

_TINY = torch.finfo(torch.float32).tiny


def int8_channels(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """int8[N, K] codes and bfloat16[N, 1] scales of ``matrix`` float32[N, K]."""
    scales = _scales(matrix, LARGEST_INT8)
    codes = (matrix / scales.float()).round_().clamp_(-LARGEST_INT8, LARGEST_INT8)
    return codes.to(torch.int8), scales


def float8_channels(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """float8_e4m3fn[N, K] codes and bfloat16[N, 1] scales of ``matrix`` float32[N, K]."""
    scales = _scales(matrix, LARGEST_FLOAT8)
    codes = (matrix / scales.float()).clamp_(-LARGEST_FLOAT8, LARGEST_FLOAT8)
    return codes.to(torch.float8_e4m3fn), scales


def round_tokens_int8(x: Tensor) -> Tensor:
    """Inputs float32[T, K] as symmetric int8 with a scale for each token, as floats again."""
    scale = x.abs().amax(-1, keepdim=True).div_(LARGEST_INT8).clamp_min_(_TINY)
    return (x / scale).round_().mul_(scale)


def round_tokens_float8(x: Tensor) -> Tensor:
    """Inputs float32[T, K] as float8 with a scale for each token, as floats again."""
    scale = x.abs().amax(-1, keepdim=True).div_(LARGEST_FLOAT8).clamp_min_(_TINY)
    return (x / scale).to(torch.float8_e4m3fn).float().mul_(scale)


def _scales(matrix: Tensor, largest: float) -> Tensor:
    scales = (matrix.abs().amax(1, keepdim=True) / largest).to(STORED)
    return torch.where(scales == 0, torch.finfo(STORED).smallest_normal, scales)
