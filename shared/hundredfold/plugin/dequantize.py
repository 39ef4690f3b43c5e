"""What canonical weights and input transforms mean, as tensor arithmetic: the definition kernels are held to.

Only methods of the tensors that are passed in are used, so that importing this does not import torch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hundredfold.plugin.weights import (
    BlockHadamard,
    CanonicalWeight,
    ChannelInt8Weight,
    Codebook4Weight,
    DenseWeight,
    Float8Weight,
    GroupedIntWeight,
    InputTransform,
    Permute,
    Scale,
    Zero,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PIECE = 1 << 20
"""Elements of a quantized matrix that are computed at a time."""


def dequantize(weight: CanonicalWeight, dtype: torch.dtype) -> Tensor:
    """The matrix [N, K] that a weight stands for, its input transform left aside.

    Quantized weights are computed in float32 and rounded to ``dtype`` once. A dense weight that already has
    the type comes back as it is.
    """
    match weight:
        case DenseWeight():
            return weight.weight.to(dtype)
        case GroupedIntWeight():
            return _grouped_in_pieces(weight, dtype)
        case ChannelInt8Weight():
            return (weight.codes.float() * weight.scales.float()[:, None]).to(dtype)
        case Float8Weight():
            return _float8(weight).to(dtype)
        case Codebook4Weight():
            return _codebook4_in_pieces(weight, dtype)


def transform_input(x: Tensor, transform: InputTransform | None) -> Tensor:
    """Apply a weight's input transform to ``x`` [M, K]; same shape and type."""
    match transform:
        case None:
            return x
        case Permute(index):
            return x[:, index]
        case Scale(factor):
            return x * factor.to(x.dtype)
        case BlockHadamard(block):
            return rotate(x, block).to(x.dtype)


def fold_transform(matrix: Tensor, transform: InputTransform | None) -> Tensor:
    """The matrix [N, K] that needs no transform of its input to give what ``matrix`` gives with one."""
    if not isinstance(transform, Permute):
        return transform_input(matrix, transform)  # scales and rotations are their own transposes
    folded = matrix.new_empty(matrix.shape)
    folded[:, transform.index] = matrix
    return folded


def rotate(x: Tensor, block: int) -> Tensor:
    """Each run of ``block`` columns of ``x`` [M, K] times the normalised Hadamard matrix, in float32.

    Butterflies at distances 1, 2, 4, ..., the norm last: every rounding is defined, so kernels can give the
    same bits, and a row's are the same in any company.
    """
    if block < 1 or block & (block - 1):
        raise ValueError(f"a Hadamard matrix needs a power of two, not {block}")
    values = x.float()
    distance = 1
    while distance < block:
        pairs = values.reshape(len(x), -1, 2, distance)
        low, high = pairs[:, :, 0], pairs[:, :, 1]
        values = pairs.new_empty(pairs.shape)
        values[:, :, 0] = low + high
        values[:, :, 1] = low - high
        distance *= 2
    return (values * (1 / math.sqrt(block))).view(x.shape) if block > 1 else values


def _grouped_in_pieces(weight: GroupedIntWeight, dtype: torch.dtype) -> Tensor:
    """Some rows at a time, so that float32 copies of a large matrix never exist."""
    rows = max(1, PIECE // weight.codes.shape[1])
    zeros = weight.zeros
    matrix = weight.scales.new_empty(weight.codes.shape, dtype=dtype)
    for first in range(0, len(matrix), rows):
        piece = slice(first, first + rows)
        own_zeros = None if zeros is None else zeros[piece]
        matrix[piece] = _grouped(weight, weight.codes[piece], weight.scales[piece], own_zeros)
    return matrix


def _grouped(weight: GroupedIntWeight, codes: Tensor, scales: Tensor, zeros: Tensor | None) -> Tensor:
    """float32: ``scale * (code - zero)`` or ``scale * code + zero``, in the order that formats define."""
    columns, group = codes.shape[1], weight.group_size
    values = codes.float()
    if zeros is not None and weight.zero is Zero.POINT:
        values = values - _over_columns(zeros.float(), group, columns)
    values = values * _over_columns(scales.float(), group, columns)
    if zeros is not None and weight.zero is Zero.OFFSET:
        values = values + _over_columns(zeros.float(), group, columns)
    return values


def _over_columns(by_group: Tensor, group: int, columns: int) -> Tensor:
    """[N, groups] to [N, columns]; the last group may be short."""
    return by_group[:, :, None].expand(-1, -1, group).flatten(1)[:, :columns]


def _float8(weight: Float8Weight) -> Tensor:
    codes, scales = weight.codes.float(), weight.scales.float()
    if weight.block is None:
        return codes * scales
    rows, columns = weight.block
    scales = scales.repeat_interleave(rows, dim=0)[: codes.shape[0]]
    return codes * _over_columns(scales, columns, codes.shape[1])


def _codebook4_in_pieces(weight: Codebook4Weight, dtype: torch.dtype) -> Tensor:
    """Some groups at a time: looking codes up takes eight bytes for each of them."""
    codes, group = weight.codes.flatten(), weight.group_size
    matrix = weight.scales.new_empty(codes.shape, dtype=dtype)
    groups = max(1, PIECE // group)
    for first in range(0, len(weight.scales), groups):
        piece = slice(first * group, (first + groups) * group)
        values = weight.codebook.float()[codes[piece].long()]
        scales = weight.scales[first : first + groups].float().repeat_interleave(group)
        matrix[piece] = values * scales[: len(values)]
    return matrix.view(weight.codes.shape)
