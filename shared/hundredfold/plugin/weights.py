"""Canonical weights: the few forms that format plugins produce and kernel plugins multiply by.

Shapes use ``N`` for output features and ``K`` for input features, so every weight stands for a matrix
``W[N, K]`` and a linear layer computes ``y[M, N] = transform(x[M, K]) @ W.T + bias[N]``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@enum.unique
class Zero(enum.Enum):
    """How grouped integer codes become numbers."""

    POINT = "point"
    """``w = scale * (code - zero)``; ``zeros`` holds the zero points (GPTQ, AWQ, Q4_0, Q8_0)."""
    OFFSET = "offset"
    """``w = scale * code + zero``; ``zeros`` holds the offsets, in the scales' unit (Q4_1, Q5_1)."""


@dataclass(frozen=True, slots=True)
class Permute:
    """Input transform: ``x[:, index]``, as act-order checkpoints need. ``index`` is int64[K]."""

    index: Tensor


@dataclass(frozen=True, slots=True)
class Scale:
    """Input transform: ``x * factor``, as smoothed checkpoints need. ``factor`` is float[K]."""

    factor: Tensor


@dataclass(frozen=True, slots=True)
class BlockHadamard:
    """Input transform: each run of ``block`` columns times the normalised Hadamard matrix of that size."""

    block: int


InputTransform = Permute | Scale | BlockHadamard
"""What is done to a layer's input before the multiplication; ``None`` for nothing."""


@dataclass(frozen=True, slots=True)
class DenseWeight:
    """A plain matrix: ``weight`` is a float type [N, K]."""

    weight: Tensor
    transform: InputTransform | None = None


@dataclass(frozen=True, slots=True)
class GroupedIntWeight:
    """Integers with a scale per row and group of columns.

    ``codes`` is uint8[N, K] of values below ``2**bits``, or int8[N, K] where the format stores signed
    numbers; ``scales`` and ``zeros`` are [N, ceil(K / group_size)] in the type the checkpoint stored.
    ``zeros`` is ``None`` where every zero point is 0. The last group may be short.
    """

    codes: Tensor
    scales: Tensor
    zeros: Tensor | None
    bits: int
    group_size: int
    zero: Zero
    transform: InputTransform | None = None


@dataclass(frozen=True, slots=True)
class ChannelInt8Weight:
    """int8[N, K] ``codes`` with one scale per output channel, ``scales`` float32[N]."""

    codes: Tensor
    scales: Tensor
    transform: InputTransform | None = None


@dataclass(frozen=True, slots=True)
class Float8Weight:
    """float8 ``codes`` [N, K]; ``scales`` float32 is [], [N, 1] or one per ``block`` (rows, columns)."""

    codes: Tensor
    scales: Tensor
    block: tuple[int, int] | None = None
    transform: InputTransform | None = None


@dataclass(frozen=True, slots=True)
class Codebook4Weight:
    """4-bit indices into 16 values (nf4, fp4).

    ``codes`` is uint8[N, K] below 16, ``codebook`` float32[16], ``scales``
    float32[ceil(N * K / group_size)] over the flattened matrix: groups cross rows, the last may be short.
    """

    codes: Tensor
    codebook: Tensor
    scales: Tensor
    group_size: int
    transform: InputTransform | None = None


CanonicalWeight = DenseWeight | GroupedIntWeight | ChannelInt8Weight | Float8Weight | Codebook4Weight
"""Any weight that a kernel can be asked to multiply by."""
