"""Linear layers with packed weights: products in float32, or of integers with inputs in int8."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from hundredfold.plugin import (
    API_VERSION,
    Activations,
    ChannelInt8Weight,
    GroupedIntWeight,
    InputTransform,
    Linear,
    LinearSpec,
    NativeCall,
    Reasons,
)
from hundredfold.plugin.dequantize import transform_input
from hundredfold_cpu.channel_int8 import prepare_channel_int8, refuses_channel_int8
from hundredfold_cpu.grouped import KERNELS, pack_grouped, refuses_grouped
from hundredfold_cpu.library import INT, POINTER, Kernel, Variant, best
from hundredfold_cpu.packed import PackedWeight, pack
from hundredfold_cpu.program import ROWS, kept_call

SHORT = 1 << 23
"""Multiplications of about a tenth of a millisecond: for fewer, the interpreter is not lent to others."""


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
    nbytes: int
    recipe: str

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

    def capture(self, x: Tensor, out: Tensor) -> NativeCall | None:
        """See ``CapturingLinear``; an input transform is torch's work."""
        if self.transform is not None:
            return None
        both = (self.address, x.data_ptr(), x.stride(0), ROWS, out.data_ptr(), out.stride(0))
        return kept_call(self.variant, self.kernel, *both, held=(self.weight, x, out))


class CpuKernels:
    """Products by kernels of our own; quantized weights stay packed in memory."""

    name = "cpu"
    api_version = API_VERSION
    priority = 20
    activations = (Activations.FLOAT, Activations.INT8)

    def __init__(self, variant: Variant | None = None) -> None:
        self._variant = variant or best()

    def refuses(self, spec: LinearSpec) -> Reasons:
        """Takes every canonical weight with float32 inputs; int8 inputs where the weight has integers."""
        if spec.device.type != "cpu":
            return [f"runs on cpu, not on {spec.device.type}"]
        if spec.activations is Activations.INT8:
            if isinstance(spec.weight, ChannelInt8Weight):
                return refuses_channel_int8(spec)
            if isinstance(spec.weight, GroupedIntWeight):
                return refuses_grouped(spec, spec.weight)
            return [f"{type(spec.weight).__name__} has no product with int8 inputs"]
        if spec.dtype != torch.float32:
            return [f"computes in float32, not in {str(spec.dtype).removeprefix('torch.')}"]
        return []

    def prepare(self, spec: LinearSpec, bias: Tensor | None) -> Linear:
        """Pack the weight."""
        if spec.activations is Activations.INT8:
            if isinstance(spec.weight, ChannelInt8Weight):
                return prepare_channel_int8(self._variant, spec, bias)
            if isinstance(spec.weight, GroupedIntWeight):
                return self._linear(
                    spec, KERNELS[spec.dtype], pack_grouped(spec.weight, bias), "sums in int32"
                )
        return self._linear(spec, "linear", pack(spec.weight, bias), "product in float32")

    def _linear(self, spec: LinearSpec, kernel: str, weight: PackedWeight, product: str) -> CpuLinear:
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
            transform=spec.weight.transform,
            nbytes=weight.nbytes,
            recipe=f"{weight.kept}, {product}, {self._variant.isa}",
        )
