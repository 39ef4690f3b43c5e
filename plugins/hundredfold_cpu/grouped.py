"""Grouped integers arranged for products with int8 inputs; native/grouped.h says how they lie."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from hundredfold.plugin import GroupedIntWeight, LinearSpec, Reasons
from hundredfold.plugin.integer import LARGEST_GROUP, offsets_of, same_point
from hundredfold_cpu.library import INT, POINTER, common_function
from hundredfold_cpu.packed import PANEL, PackedWeight, by_panel, is_half
from hundredfold_cpu.room import Room

GROUPED_KERNELS = {torch.float32: "grouped_int8_float32", torch.bfloat16: "grouped_int8_bfloat16"}
"""The native function for inputs and outputs of a type."""

_QUAD = 4
"""Columns that lie side by side; each group is filled up to a multiple."""

_PACK = common_function("pack_grouped", POINTER, POINTER, INT, INT, POINTER)


class GroupedRecord(ctypes.Structure):
    """``GroupedWeight`` of ``native/grouped.h``."""

    _fields_ = (
        ("codes", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("group", ctypes.c_int64),
        ("bits", ctypes.c_int32),
        ("code_bias", ctypes.c_int32),
        ("half", ctypes.c_int32),
    )


def refuses_grouped(spec: LinearSpec, weight: GroupedIntWeight) -> Reasons:
    """Why the integer product cannot compute the layer; empty when it can."""
    reasons = []
    if spec.dtype not in GROUPED_KERNELS:
        reasons.append(
            f"takes inputs in float32 and bfloat16, not in {str(spec.dtype).removeprefix('torch.')}"
        )
    group = min(weight.group_size, spec.shape[1])
    if group > LARGEST_GROUP:
        reasons.append(f"sums at most {LARGEST_GROUP} products of a group, not {group}")
    return reasons


def pack_grouped(weight: GroupedIntWeight, bias: Tensor | None, room: Room) -> PackedWeight:
    """Codes of up to 4 bits in 4, others in 8. The input transform is left aside; ``bias`` is [N] or None."""
    n, k = weight.codes.shape
    bits = 4 if weight.bits <= 4 else 8
    # Signed codes are made unsigned, which the kernel takes back together with a zero point that all share.
    shift = 1 << (weight.bits - 1) if weight.codes.dtype == torch.int8 else 0
    stored = weight.codes if weight.codes.stride(1) == 1 else weight.codes.contiguous()
    offsets = offsets_of(weight)
    half = weight.scales.dtype == torch.float16 and is_half(offsets)
    dtype = torch.float16 if half else torch.float32
    tensors = [room.take((_bytes(n, k, weight.group_size, bits),), torch.uint8)]
    tensors.append(room.keep(by_panel(weight.scales.to(dtype))))
    record = GroupedRecord(
        codes=tensors[0].data_ptr(),
        scales=tensors[1].data_ptr(),
        n=n,
        k=k,
        group=weight.group_size,
        bits=bits,
        code_bias=shift + (same_point(weight) or 0),
        half=half,
    )
    if offsets is not None:
        tensors.append(room.keep(by_panel(offsets.to(dtype))))
        record.offsets = tensors[-1].data_ptr()
    if bias is not None:
        tensors.append(bias.float().contiguous())
        record.bias = tensors[-1].data_ptr()
    _PACK(ctypes.addressof(record), stored.data_ptr(), stored.stride(0), shift, record.codes)
    return PackedWeight(record, tuple(tensors), f"weights kept in {bits} bits, inputs in int8 by group")


def _bytes(n: int, k: int, group: int, bits: int) -> int:
    whole, rest = divmod(k, group)
    quads = whole * -(-group // _QUAD) + -(-rest // _QUAD)
    return -(-n // PANEL) * quads * PANEL * _QUAD * bits // 8
