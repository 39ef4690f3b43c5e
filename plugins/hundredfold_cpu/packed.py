"""Canonical weights in the library's panels: what stays packed, what becomes dense, and the record of it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from hundredfold.plugin import CanonicalWeight, GroupedIntWeight, Zero
from hundredfold.plugin.dequantize import dequantize
from hundredfold_cpu.library import INT, POINTER, common_function

PANEL = 16
"""Output features that lie side by side."""

_DENSE, _FOUR_BITS, _EIGHT_BITS = 0, 4, 8
_NO_ZEROS, _POINTS, _OFFSETS, _EXACT = 0, 1, 2, 3
_16_BITS = (torch.float16, torch.bfloat16)

_PACK_DENSE = common_function("pack_dense", POINTER, INT, INT, INT, POINTER)
_PACK_CODES = {
    bits: common_function(f"pack_codes{bits}", POINTER, INT, INT, INT, INT, POINTER)
    for bits in (_FOUR_BITS, _EIGHT_BITS)
}


class Record(ctypes.Structure):
    """``Weight`` of ``native/weight.h``."""

    _fields_ = (
        ("values", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("zeros", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("group", ctypes.c_int64),
        ("codes", ctypes.c_int32),
        ("zeros_kind", ctypes.c_int32),
        ("code_bias", ctypes.c_int32),
        ("half", ctypes.c_int32),
    )


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A weight in panels, and the tensors that its record points into."""

    record: ctypes.Structure
    tensors: tuple[Tensor, ...]
    kept: str
    """What lies in memory, for reports."""

    @property
    def nbytes(self) -> int:
        """Bytes of the panels, scales and bias."""
        return sum(tensor.nbytes for tensor in self.tensors)


def pack(weight: CanonicalWeight, bias: Tensor | None) -> PackedWeight:
    """Grouped integers stay integers of 4 or 8 bits, everything else becomes float32.

    The input transform is left aside. ``bias`` is [N] or None.
    """
    codes = _codes(weight) if isinstance(weight, GroupedIntWeight) else None
    return _pack_codes(codes, bias) if codes is not None else _pack_dense(weight, bias)


@dataclass(frozen=True, slots=True)
class _Codes:
    """Grouped integers as the kernel reads them: unsigned after ``shift`` was added."""

    weight: GroupedIntWeight
    bits: int
    shift: int
    bias: int
    """What the kernel subtracts again, where there are no zeros."""
    zeros: Tensor | None
    zeros_kind: int


def _codes(weight: GroupedIntWeight) -> _Codes | None:
    """How a weight can be kept; ``None`` where it has to become dense."""
    signed = weight.codes.dtype == torch.int8
    shift = 1 << (weight.bits - 1) if signed else 0
    # Two 4-bit codes share a byte, and a group must not end between them.
    bits = _FOUR_BITS if weight.bits <= _FOUR_BITS and weight.group_size % 2 == 0 else _EIGHT_BITS
    if weight.zeros is None:
        return _Codes(weight, bits, shift, shift, None, _NO_ZEROS)
    if weight.zero is Zero.OFFSET:
        kind = _EXACT if weight.scales.dtype in _16_BITS else _OFFSETS
        return None if signed else _Codes(weight, bits, 0, 0, weight.zeros, kind)
    zeros = weight.zeros.float()
    first = float(zeros.flatten()[0])
    if bool((zeros == first).all()) and first.is_integer() and abs(first) < 1 << 16:
        return _Codes(weight, bits, shift, shift + int(first), None, _NO_ZEROS)
    shifted = zeros + shift
    if not torch.equal(shifted - shift, zeros):
        return None
    return _Codes(weight, bits, shift, 0, shifted, _POINTS)


def _pack_codes(codes: _Codes, bias: Tensor | None) -> PackedWeight:
    weight = codes.weight
    n, k = weight.codes.shape
    rows = -(-k // 2) if codes.bits == _FOUR_BITS else k
    stored = weight.codes if weight.codes.stride(1) == 1 else weight.codes.contiguous()
    values = torch.empty((_panels(n), rows, PANEL), dtype=torch.uint8)
    _PACK_CODES[codes.bits](stored.data_ptr(), stored.stride(0), n, k, codes.shift, values.data_ptr())
    half = weight.scales.dtype == torch.float16 and is_half(codes.zeros)
    dtype = torch.float16 if half else torch.float32
    scales = by_panel(weight.scales.to(dtype))
    zeros = None if codes.zeros is None else by_panel(codes.zeros.to(dtype))
    record = Record(
        values=values.data_ptr(),
        scales=scales.data_ptr(),
        zeros=None if zeros is None else zeros.data_ptr(),
        n=n,
        k=k,
        group=weight.group_size,
        codes=codes.bits,
        zeros_kind=codes.zeros_kind,
        code_bias=codes.bias,
        half=half,
    )
    tensors = (values, scales) if zeros is None else (values, scales, zeros)
    return _with_bias(record, tensors, bias, f"weights kept in {codes.bits} bits")


def _pack_dense(weight: CanonicalWeight, bias: Tensor | None) -> PackedWeight:
    matrix = dequantize(weight, torch.float32)
    if matrix.stride(1) != 1:
        matrix = matrix.contiguous()
    n, k = matrix.shape
    values = torch.empty((_panels(n), k, PANEL))
    _PACK_DENSE(matrix.data_ptr(), matrix.stride(0), n, k, values.data_ptr())
    record = Record(values=values.data_ptr(), n=n, k=k, group=k, codes=_DENSE)
    return _with_bias(record, (values,), bias, "weights in float32")


def _with_bias(record: Record, tensors: tuple[Tensor, ...], bias: Tensor | None, kept: str) -> PackedWeight:
    if bias is not None:
        bias = bias.float().contiguous()
        record.bias = bias.data_ptr()
        tensors = (*tensors, bias)
    return PackedWeight(record, tensors, kept)


def by_panel(by_row: Tensor) -> Tensor:
    """[N, groups] to [panels, groups, 16], zero past N."""
    n, groups = by_row.shape
    padded = by_row.new_zeros((_panels(n) * PANEL, groups))
    padded[:n] = by_row
    return padded.view(-1, PANEL, groups).transpose(1, 2).contiguous()


def is_half(values: Tensor | None) -> bool:
    """Whether half precision holds every number."""
    return values is None or torch.equal(values.half().float(), values.float())


def _panels(n: int) -> int:
    return -(-n // PANEL)
