"""Products of quantized inputs with integer weights, as tensor arithmetic: what kernels are held to.

``Activations.INT8`` for a grouped integer weight, bit for bit. All in float32, ``fma`` rounds once:

1. The input after the weight's transform is cut in the weight's groups of columns; each becomes int8 by
   ``quantize_rows``: codes ``q`` and a scale ``xs`` for each row and group.
2. ``grouped_terms`` reads the weight as ``ws * c + wo``: integers ``c``, scales ``ws``, perhaps offsets.
3. Each output starts at 0 and takes the groups in ascending order::

       acc = fma(float(sum(c * q)), ws * xs, acc)      the sum is exact, in int32
       acc = fma(wo, float(sum(q)) * xs, acc)          where there are offsets

4. The bias is added last, and the result rounded to the compute type.

``Activations.INT8`` for an int8 weight by channel: the input after the weight's transform, in float32,
becomes int8 by row, and ``y = float(sum(c * q)) * (ws * xs) + bias``, the sum exact, all else rounded.

Only methods of the tensors that are passed in are used, so that importing this does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hundredfold.plugin.dequantize import rotate, transform_input
from hundredfold.plugin.weights import BlockHadamard, ChannelInt8Weight, GroupedIntWeight, Zero

if TYPE_CHECKING:
    from torch import Tensor

LARGEST_CODE = 127
"""Codes of inputs are between this and its negative."""

SMALLEST = 2.0**-96
"""Groups whose largest magnitude is below this become zeros: its reciprocal must not overflow."""

LARGEST_GROUP = 1 << 16
"""Columns of a group: as many products of 8-bit codes fit in an int32 sum."""


def quantize_rows(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Symmetric int8 for each row and run of ``group`` columns, the last of which may be short.

    Returns codes int8[M, K] and scales float32[M, ceil(K / group)]: with ``top`` the largest magnitude, the
    scale is ``top / 127`` and a code ``x * (127 / top)``, rounded half to even. Where ``top`` is below 2**-96
    both are 0; where a number is not finite the scale is NaN and the codes are 0.
    """
    rows, columns = x.shape
    groups = -(-columns // group)
    padded = x.new_zeros((rows, groups * group)).float()
    padded[:, :columns] = x
    cut = padded.view(rows, groups, group)
    numbers, scales = scaled(cut, LARGEST_CODE)
    return numbers.round().char().view(rows, -1)[:, :columns], scales


def scaled(x: Tensor, largest: int) -> tuple[Tensor, Tensor]:
    """``x`` float32[..., n] with each run of ``n`` brought to at most ``largest``, and scales float32[...].

    With ``top`` a run's largest magnitude, ``x * (largest / top)`` and ``top / largest``. Where ``top`` is
    below 2**-96 both are 0; where a number is not finite the scale is NaN and the numbers are 0.
    """
    top = x.abs().amax(-1)
    finite = top < float("inf")  # false for NaN as well
    used = finite & (top >= SMALLEST)
    limit = top.new_tensor(float(largest))  # torch divides a plain number by way of a rounded reciprocal
    ratio = (limit / top).where(used, 0.0)
    numbers = x.where(used[..., None], 0.0) * ratio[..., None]
    return numbers, (top / limit).where(used, 0.0).where(finite, float("nan"))


@dataclass(frozen=True, slots=True)
class GroupedTerms:
    """A grouped integer weight as ``scale * code + offset``."""

    codes: Tensor
    """int16[N, K]."""
    scales: Tensor
    """float32[N, groups]."""
    offsets: Tensor | None
    """float32[N, groups], or ``None`` where all are 0."""
    group_size: int


def same_point(weight: GroupedIntWeight) -> int | None:
    """The integer that is the zero point of every group; ``None`` where there is no such number."""
    if weight.zeros is None:
        return 0
    if weight.zero is Zero.OFFSET:
        return None
    points = weight.zeros.float()
    first = float(points[0, 0])
    if not (first.is_integer() and abs(first) < 1 << 8 and bool((points == first).all())):
        return None
    return int(first)


def offsets_of(weight: GroupedIntWeight) -> Tensor | None:
    """``offsets`` of ``grouped_terms``: zero points that differ become ``-(scale * point)``, rounded."""
    if same_point(weight) is not None or weight.zeros is None:
        return None
    if weight.zero is Zero.OFFSET:
        return weight.zeros.float()
    return -(weight.scales.float() * weight.zeros.float())


def grouped_terms(weight: GroupedIntWeight) -> GroupedTerms:
    """What a product of integers needs; a zero point that all groups share goes into the codes."""
    codes = weight.codes.short() - (same_point(weight) or 0)
    return GroupedTerms(codes, weight.scales.float(), offsets_of(weight), weight.group_size)


def multiply_grouped(x: Tensor, terms: GroupedTerms, bias: Tensor | None) -> Tensor:
    """``x`` [M, K], after the input transform, to [M, N] of its type.

    float64 stands in for the fused operations: a sum that it rounds may, very rarely, round once more.
    """
    codes, scales = quantize_rows(x, terms.group_size)
    acc = x.new_zeros((len(x), len(terms.codes))).float()
    for group in range(scales.shape[1]):
        columns = slice(group * terms.group_size, (group + 1) * terms.group_size)
        inputs = codes[:, columns].double()
        sums = (inputs @ terms.codes[:, columns].double().T).float()
        scale = scales[:, group, None]
        acc = _fma(sums, terms.scales[:, group] * scale, acc)
        if terms.offsets is not None:
            acc = _fma(terms.offsets[:, group], inputs.sum(1, keepdim=True).float() * scale, acc)
    return (acc if bias is None else acc + bias.float()).to(x.dtype)


def multiply_channels(x: Tensor, weight: ChannelInt8Weight, bias: Tensor | None) -> Tensor:
    """``x`` [M, K], before the weight's transform, to [M, N] of its type."""
    transform = weight.transform
    if isinstance(transform, BlockHadamard):
        inputs = rotate(x, transform.block)
    else:
        inputs = transform_input(x, transform).float()
    codes, scales = quantize_rows(inputs, x.shape[1])
    sums = (codes.double() @ weight.codes.double().T).float()  # float64 holds every sum exactly
    y = sums * (weight.scales * scales)
    return (y if bias is None else y + bias.float()).to(x.dtype)


def multiply_int8(x: Tensor, weight: GroupedIntWeight | ChannelInt8Weight, bias: Tensor | None) -> Tensor:
    """``x`` [M, K], before the weight's transform, to [M, N] of its type: ``Activations.INT8`` as defined."""
    if isinstance(weight, ChannelInt8Weight):
        return multiply_channels(x, weight, bias)
    return multiply_grouped(transform_input(x, weight.transform), grouped_terms(weight), bias)


def _fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return (a.double() * b.double() + c.double()).float()
