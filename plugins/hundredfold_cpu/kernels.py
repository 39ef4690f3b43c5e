"""Linear layers with packed weights: products in float32, or of integers with inputs in int8."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from hundredfold.plugin import (
    API_VERSION,
    Activations,
    CanonicalWeight,
    ChannelInt8Weight,
    GroupedIntWeight,
    InputTransform,
    LinearSpec,
    NativeCall,
    Reasons,
)
from hundredfold.plugin.dequantize import transform_input
from hundredfold_cpu.channel_int8 import CHANNEL_KERNELS, pack_channel_int8, refuses_channel_int8
from hundredfold_cpu.dense_bf16 import DENSE_KERNEL, pack_dense_bf16
from hundredfold_cpu.grouped import GROUPED_KERNELS, pack_grouped, refuses_grouped
from hundredfold_cpu.library import INT, MATRIX_UNITS, POINTER, Kernel, Variant, best
from hundredfold_cpu.packed import PackedWeight, pack
from hundredfold_cpu.program import ROWS, ByRow, kept_call
from hundredfold_cpu.room import Room

SHORT = 1 << 23
"""Multiplications of about a tenth of a millisecond: for fewer, the interpreter is not lent to others."""

MOST_READ_AGAIN = 4 << 20
"""Bytes of a weight that caches keep: a larger one is read once for all rows, not once for each block."""


@dataclass(frozen=True, slots=True)
class CpuLinear:
    """A packed matrix and the kernel that multiplies by it, for short and for long products."""

    variant: Variant
    kernel: str
    """Its name in the library."""
    short: Kernel
    long: Kernel
    weight: PackedWeight
    address: int
    features: int
    columns: int
    dtype: torch.dtype
    transform: InputTransform | None
    """What is done to the input before the kernel has it."""
    nbytes: int
    recipe: str

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """See ``StoredLinear``."""
        return self.weight.tensors

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` [M, K] to [M, N]. Raises ``ValueError`` when it is of another size or type."""
        if x.shape[1] != self.columns:
            raise ValueError(f"the input has {x.shape[1]} columns, the layer takes {self.columns}")
        if x.dtype != self.dtype:
            raise ValueError(f"the input is {x.dtype}, the layer takes {self.dtype}")
        if self.transform is not None:
            x = transform_input(x, self.transform)
        if x.stride(1) != 1:
            x = x.contiguous()
        y = x.new_empty((len(x), self.features))
        kernel = self.short if y.numel() * self.columns < SHORT else self.long
        kernel(self.address, x.data_ptr(), x.stride(0), len(x), y.data_ptr(), self.features)
        return y

    @property
    def _on_matrix_unit(self) -> bool:
        """So quick that reading its weight once for each block of rows would take longer."""
        return self.variant.isa in MATRIX_UNITS and self.kernel in (*CHANNEL_KERNELS.values(), DENSE_KERNEL)

    def capture(self, x: Tensor, out: Tensor) -> NativeCall | None:
        """See ``CapturingLinear``; transforming an input is torch's work."""
        if self.transform is not None:
            return None
        whole = self.nbytes > MOST_READ_AGAIN or self._on_matrix_unit
        here, there = (x.data_ptr(), out.data_ptr()) if whole else (ByRow(x), ByRow(out))
        both = (self.address, here, x.stride(0), ROWS, there, out.stride(0))
        return kept_call(self.variant, self.kernel, *both, held=(self.weight, x, out))


class CpuKernels:
    """Products by kernels of our own; quantized weights stay packed in memory."""

    name = "cpu"
    api_version = API_VERSION
    priority = 20
    activations = (Activations.FLOAT, Activations.INT8)

    def __init__(self, variant: Variant | None = None) -> None:
        self._variant = variant or best()
        self._room = Room()

    def refuses(self, spec: LinearSpec) -> Reasons:
        """Takes every canonical weight with float inputs; int8 inputs where the weight has integers."""
        if spec.device.type != "cpu":
            return [f"runs on cpu, not on {spec.device.type}"]
        if spec.activations is Activations.INT8:
            if isinstance(spec.weight, ChannelInt8Weight):
                return refuses_channel_int8(spec)
            if isinstance(spec.weight, GroupedIntWeight):
                return refuses_grouped(spec, spec.weight)
            return [f"{type(spec.weight).__name__} has no product with int8 inputs"]
        if spec.dtype not in (torch.float32, torch.bfloat16):
            return [f"computes in float32 and bfloat16, not in {str(spec.dtype).removeprefix('torch.')}"]
        return []

    def varies(self, spec: LinearSpec) -> Reasons:
        """Never: a sum is one chain over the columns, or of integers."""
        return []

    def favours(self, device: torch.device) -> tuple[type[CanonicalWeight], ...]:
        """int8 by channel where the processor has a matrix unit: sums of a whole row stay in its tiles."""
        has_unit = device.type == "cpu" and self._variant.isa in MATRIX_UNITS
        return (ChannelInt8Weight,) if has_unit else ()

    def prepare(self, spec: LinearSpec, bias: Tensor | None) -> CpuLinear:
        """Pack the weight."""
        weight = spec.weight
        if spec.activations is Activations.INT8 and isinstance(weight, ChannelInt8Weight):
            packed = pack_channel_int8(self._variant, weight, bias, self._room)  # it rotates the input itself
            return self._linear(spec, CHANNEL_KERNELS[spec.dtype], packed, None, "sums in int32")
        if spec.activations is Activations.INT8 and isinstance(weight, GroupedIntWeight):
            packed, kernel = pack_grouped(weight, bias, self._room), GROUPED_KERNELS[spec.dtype]
            return self._linear(spec, kernel, packed, weight.transform, "sums in int32")
        if spec.dtype == torch.bfloat16:
            packed = pack_dense_bf16(weight, bias, self._room)
            return self._linear(spec, DENSE_KERNEL, packed, weight.transform, "sums in float32")
        return self._linear(spec, "linear", pack(weight, bias), weight.transform, "product in float32")

    def _linear(
        self,
        spec: LinearSpec,
        kernel: str,
        weight: PackedWeight,
        transform: InputTransform | None,
        product: str,
    ) -> CpuLinear:
        features, columns = spec.shape
        arguments = (POINTER, POINTER, INT, INT, POINTER, INT)
        return CpuLinear(
            variant=self._variant,
            kernel=kernel,
            short=self._variant.function(kernel, *arguments, release=False),
            long=self._variant.function(kernel, *arguments),
            weight=weight,
            address=ctypes.addressof(weight.record),
            features=features,
            columns=columns,
            dtype=spec.dtype,
            transform=transform,
            nbytes=weight.nbytes,
            recipe=f"{weight.kept}, {product}, {self._variant.isa}",
        )
