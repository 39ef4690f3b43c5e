"""Linear layers of whole numbers: int8 weights by output feature times inputs that become int8 by row."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hundredfold.plugin import Activations, BlockHadamard, ChannelInt8Weight, LinearSpec, NativeCall, Reasons
from hundredfold_cpu.library import INT, POINTER, Kernel, Variant
from hundredfold_cpu.packed import PANEL
from hundredfold_cpu.program import ROWS, kept_call

MOST_COLUMNS = 1 << 17
"""Products of 8-bit codes that an int32 sum holds."""

_STEP = 4
"""Columns of the widest arrangement, to which memory is rounded up."""

_SUFFIXES = {torch.float32: "f32", torch.bfloat16: "bf16"}

_SHORT = 1 << 23
"""Multiplications of about a tenth of a millisecond: for fewer, the interpreter is not lent to others."""


class Record(ctypes.Structure):
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


@dataclass(frozen=True, slots=True)
class ChannelInt8Linear:
    """A packed matrix and the kernel that rotates, quantizes and multiplies, for short and long products."""

    variant: Variant
    kernel: str
    """Its name in the library."""
    short: Kernel
    long: Kernel
    record: Record
    tensors: tuple[Tensor, ...]
    """What the record points into."""
    address: int
    features: int
    columns: int
    dtype: torch.dtype
    recipe: str

    @property
    def nbytes(self) -> int:
        """Bytes of the codes, scales, corrections and bias."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` [M, K] to [M, N]. Raises ``ValueError`` when it is of another size or type."""
        if x.shape[1] != self.columns or x.dtype != self.dtype:
            raise ValueError(
                f"the input is {x.dtype}{list(x.shape)}, the layer takes {self.dtype}[M, {self.columns}]"
            )
        if x.stride(1) != 1:
            x = x.contiguous()
        y = x.new_empty((len(x), self.features))
        kernel = self.short if y.numel() * self.columns < _SHORT else self.long
        kernel(self.address, x.data_ptr(), x.stride(0), len(x), y.data_ptr(), self.features)
        return y

    def capture(self, x: Tensor, out: Tensor) -> NativeCall | None:
        """See ``CapturingLinear``."""
        both = (self.address, x.data_ptr(), x.stride(0), ROWS, out.data_ptr(), out.stride(0))
        return kept_call(self.variant, self.kernel, *both, held=(self.record, self.tensors, x, out))


def refuses_channel_int8(spec: LinearSpec) -> Reasons:
    """Why the integer product cannot compute a ``ChannelInt8Weight`` with int8 inputs; empty when it can."""
    reasons = []
    transform = spec.weight.transform
    if spec.dtype not in _SUFFIXES:
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


def prepare_channel_int8(variant: Variant, spec: LinearSpec, bias: Tensor | None) -> ChannelInt8Linear:
    """Arrange the weight as this instruction set reads it."""
    weight = spec.weight
    if not isinstance(weight, ChannelInt8Weight) or spec.activations is not Activations.INT8:
        raise ValueError(f"layer '{spec.name}' is no product of int8 inputs and int8 weights by channel")
    n, k = spec.shape
    rows = -(-n // PANEL) * PANEL
    stored = weight.codes if weight.codes.stride(1) == 1 else weight.codes.contiguous()
    codes = torch.empty(rows * (-(-k // _STEP) * _STEP), dtype=torch.int8)
    corrections = torch.empty(rows, dtype=torch.int32)
    pack = variant.function("pack_channel_int8", POINTER, INT, INT, INT, POINTER, POINTER)
    pack(stored.data_ptr(), stored.stride(0), n, k, codes.data_ptr(), corrections.data_ptr())
    scales = torch.zeros(rows)
    scales[:n] = weight.scales
    tensors = [codes, scales, corrections]
    if bias is not None:
        tensors.append(bias.float().contiguous())
    block = weight.transform.block if isinstance(weight.transform, BlockHadamard) else 1
    record = Record(
        codes=codes.data_ptr(),
        scales=scales.data_ptr(),
        correction=corrections.data_ptr(),
        bias=None if bias is None else tensors[-1].data_ptr(),
        n=n,
        k=k,
        block=block,
        norm=1 / math.sqrt(block),
    )
    name, arguments = f"channel_int8_{_SUFFIXES[spec.dtype]}", (POINTER, POINTER, INT, INT, POINTER, INT)
    rotated = f"rotated by {block} and " if block > 1 else ""
    return ChannelInt8Linear(
        variant=variant,
        kernel=name,
        short=variant.function(name, *arguments, release=False),
        long=variant.function(name, *arguments),
        record=record,
        tensors=tuple(tensors),
        address=ctypes.addressof(record),
        features=n,
        columns=k,
        dtype=spec.dtype,
        recipe=f"int8 weights by channel, inputs {rotated}quantized by token, sums in int32, {variant.isa}",
    )
