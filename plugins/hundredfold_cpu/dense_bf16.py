"""Weights in bfloat16 as products of bfloat16 read them; native/dense.h says how they lie."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from hundredfold.plugin import CanonicalWeight
from hundredfold.plugin.dequantize import dequantize
from hundredfold_cpu.library import INT, POINTER, common_function
from hundredfold_cpu.packed import PANEL, PackedWeight
from hundredfold_cpu.room import Room

DENSE_KERNEL = "dense_bf16"
"""The native function."""

_BLOCK = 32
"""Columns to a multiple of which rows are filled up."""

_PACK = common_function("pack_dense_bf16", POINTER, INT, INT, INT, POINTER)


class DenseRecord(ctypes.Structure):
    """``DenseWeight`` of ``native/dense.h``."""

    _fields_ = (
        ("values", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
    )


def pack_dense_bf16(weight: CanonicalWeight, bias: Tensor | None, room: Room) -> PackedWeight:
    """Every weight becomes bfloat16. The input transform is left aside; ``bias`` is [N] or None."""
    matrix = dequantize(weight, torch.bfloat16)
    if matrix.stride(1) != 1:
        matrix = matrix.contiguous()
    n, k = matrix.shape
    values = room.take((-(-n // PANEL), -(-k // _BLOCK) * _BLOCK, PANEL), torch.bfloat16)
    _PACK(matrix.data_ptr(), matrix.stride(0), n, k, values.data_ptr())
    record = DenseRecord(values=values.data_ptr(), n=n, k=k)
    tensors: tuple[Tensor, ...] = (values,)
    if bias is not None:
        bias = bias.float().contiguous()
        record.bias = bias.data_ptr()
        tensors = (values, bias)
    return PackedWeight(record, tensors, "weights in bfloat16")
