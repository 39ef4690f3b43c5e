"""Rows of tables looked up by a captured call: embeddings that stay packed, angles by position."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from hundredfold.plugin import CanonicalWeight, DenseWeight, GroupedIntWeight, NativeCall, Zero
from hundredfold_cpu.library import INT, POINTER, Variant
from hundredfold_cpu.program import ROWS, ByRow, kept_call

_FLOATS, _UNSIGNED, _SIGNED = 0, 1, 2
SUFFIXES = {torch.float32: "f32", torch.bfloat16: "bf16"}
"""What native functions are called by type of what is looked up."""


class _Table(ctypes.Structure):
    """``Table`` of native/lookup.cpp."""

    _fields_ = (
        ("values", POINTER),
        ("scales", POINTER),
        ("zeros", POINTER),
        ("rows", INT),
        ("columns", INT),
        ("stride", INT),
        ("group", INT),
        ("kind", INT),
        ("half", INT),
        ("offset", INT),
        ("factor", ctypes.c_double),
    )


def capture_lookup(
    variant: Variant, weight: CanonicalWeight, factor: float, rows: Tensor, out: Tensor
) -> NativeCall | None:
    """See ``hundredfold.plugin.LookingUpElementwise``; ``None`` where a table has another form."""
    table = _table(weight, factor)
    suffix = SUFFIXES.get(out.dtype)
    if table is None or suffix is None:
        return None
    arguments = (ctypes.addressof(table), ByRow(rows), ROWS, ByRow(out), out.stride(0))
    return kept_call(variant, f"lookup_{suffix}", *arguments, held=(table, weight, rows, out))


def _table(weight: CanonicalWeight, factor: float) -> _Table | None:
    if not isinstance(weight, (DenseWeight, GroupedIntWeight)) or weight.transform is not None:
        return None
    if isinstance(weight, DenseWeight):
        values = weight.weight
        if values.dtype != torch.float32 or values.stride(1) != 1:
            return None
        rows, columns = values.shape
        address = values.data_ptr()
        return _Table(
            values=address, rows=rows, columns=columns, stride=values.stride(0), kind=_FLOATS, factor=factor
        )
    by_group = [weight.scales] if weight.zeros is None else [weight.scales, weight.zeros]
    dtype = weight.scales.dtype
    known = dtype in (torch.float16, torch.float32) and weight.codes.dtype in (torch.uint8, torch.int8)
    if not known or any(part.dtype != dtype or not part.is_contiguous() for part in by_group):
        return None
    if weight.codes.stride(1) != 1:
        return None
    rows, columns = weight.codes.shape
    return _Table(
        values=weight.codes.data_ptr(),
        scales=weight.scales.data_ptr(),
        zeros=None if weight.zeros is None else weight.zeros.data_ptr(),
        rows=rows,
        columns=columns,
        stride=weight.codes.stride(0),
        group=weight.group_size,
        kind=_SIGNED if weight.codes.dtype == torch.int8 else _UNSIGNED,
        half=dtype == torch.float16,
        offset=weight.zero is Zero.OFFSET,
        factor=factor,
    )
