"""Linear layers of whole numbers: int8 weights by output feature times inputs that become int8 by row."""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from hundredfold.plugin import BlockHadamard, ChannelInt8Weight, LinearSpec, Reasons
from hundredfold_cpu.library import INT, POINTER, Variant
from hundredfold_cpu.packed import PANEL, PackedWeight
from hundredfold_cpu.room import Room

MOST_COLUMNS = 1 << 17
"""Products of 8-bit codes that an int32 sum holds."""

_STEP = 4
"""Columns of the widest arrangement, to which memory is rounded up."""

CHANNEL_KERNELS = {torch.float32: "channel_int8_f32", torch.bfloat16: "channel_int8_bf16"}
"""The native function for inputs and outputs of a type."""


class ChannelRecord(ctypes.Structure):
    """``ChannelWeight`` of ``native/channel_int8.cpp``."""

    _fields_ = (
        ("codes", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("correction", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("block", ctypes.c_int64),
        ("norm", ctypes.c_float),
    )


def refuses_channel_int8(spec: LinearSpec) -> Reasons:
    """Why the integer product cannot compute a ``ChannelInt8Weight`` with int8 inputs; empty when it can."""
    reasons = []
    transform = spec.weight.transform
    if spec.dtype not in CHANNEL_KERNELS:
        reasons.append(
            f"takes inputs in float32 and bfloat16, not in {str(spec.dtype).removeprefix('torch.')}"
        )
    if transform is not None and not isinstance(transform, BlockHadamard):
        reasons.append(
            f"rotates its input before it quantizes, but does not apply {type(transform).__name__}"
        )
    if spec.shape[1] > MOST_COLUMNS:
        reasons.append(f"sums at most {MOST_COLUMNS} products, not {spec.shape[1]}")
    return reasons


def pack_channel_int8(
    variant: Variant, weight: ChannelInt8Weight, bias: Tensor | None, room: Room
) -> PackedWeight:
    """As this instruction set reads it, the rotation of the input included; ``bias`` is [N] or None."""
    n, k = weight.codes.shape
    rows = -(-n // PANEL) * PANEL
    stored = weight.codes if weight.codes.stride(1) == 1 else weight.codes.contiguous()
    codes = room.take((rows * (-(-k // _STEP) * _STEP),), torch.int8)
    corrections = torch.empty(rows, dtype=torch.int32)
    pack = variant.function("pack_channel_int8", POINTER, INT, INT, INT, POINTER, POINTER)
    pack(stored.data_ptr(), stored.stride(0), n, k, codes.data_ptr(), corrections.data_ptr())
    scales = torch.zeros(rows)
    scales[:n] = weight.scales
    tensors = [codes, scales, corrections]
    if bias is not None:
        tensors.append(bias.float().contiguous())
    block = weight.transform.block if isinstance(weight.transform, BlockHadamard) else 1
    record = ChannelRecord(
        codes=codes.data_ptr(),
        scales=scales.data_ptr(),
        correction=corrections.data_ptr(),
        bias=None if bias is None else tensors[-1].data_ptr(),
        n=n,
        k=k,
        block=block,
        norm=1 / math.sqrt(block),
    )
    rotated = f"rotated by {block} and " if block > 1 else ""
    kept = f"int8 weights by channel, inputs {rotated}quantized by token"
    return PackedWeight(record, tuple(tensors), kept)
