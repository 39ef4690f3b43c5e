"""Linear layers in float32 with packed weights: integers stay integers in memory."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from hundredfold.plugin import API_VERSION, InputTransform, LinearSpec, NativeCall, Reasons
from hundredfold.plugin.dequantize import transform_input
from hundredfold_cpu.library import INT, POINTER, Kernel, Variant, best
from hundredfold_cpu.packed import PackedWeight, pack
from hundredfold_cpu.program import ROWS, kept_call

SHORT = 1 << 23
"""Multiplications of about a tenth of a millisecond: for fewer, the interpreter is not lent to others."""


@dataclass(frozen=True, slots=True)
class CpuLinear:
    """A packed matrix and the kernel that multiplies by it, for short and for long products."""

    variant: Variant
    short: Kernel
    long: Kernel
    weight: PackedWeight
    address: int
    features: int
    columns: int
    transform: InputTransform | None
    nbytes: int
    recipe: str

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` [M, K] to [M, N]. Raises ``ValueError`` when it is of another size."""
        if x.shape[1] != self.columns:
            raise ValueError(f"the input has {x.shape[1]} columns, the layer takes {self.columns}")
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
        return kept_call(self.variant, "linear", *both, held=(self.weight, x, out))


class CpuKernels:
    """Products in float32 by kernels of our own; quantized weights stay packed in memory."""

    name = "cpu"
    api_version = API_VERSION
    priority = 20

    def __init__(self, variant: Variant | None = None) -> None:
        self._variant = variant or best()
        arguments = (POINTER, POINTER, INT, INT, POINTER, INT)
        self._short = self._variant.function("linear", *arguments, release=False)
        self._long = self._variant.function("linear", *arguments)

    def refuses(self, spec: LinearSpec) -> Reasons:
        """Takes every canonical weight, in float32."""
        if spec.device.type != "cpu":
            return [f"runs on cpu, not on {spec.device.type}"]
        if spec.dtype != torch.float32:
            return [f"computes in float32, not in {str(spec.dtype).removeprefix('torch.')}"]
        return []

    def prepare(self, spec: LinearSpec, bias: Tensor | None) -> CpuLinear:
        """Pack the weight."""
        weight = pack(spec.weight, bias)
        features, columns = spec.shape
        return CpuLinear(
            variant=self._variant,
            short=self._short,
            long=self._long,
            weight=weight,
            address=ctypes.addressof(weight.record),
            features=features,
            columns=columns,
            transform=spec.weight.transform,
            nbytes=weight.nbytes,
            recipe=f"{weight.kept}, product in float32, {self._variant.isa}",
        )
