"""Norms, rotation and gated activations as one native call each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hundredfold.plugin import (
    API_VERSION,
    Activation,
    CanonicalWeight,
    ElementwiseSpec,
    NativeCall,
    Reasons,
    RotaryStyle,
    Rotation,
)
from hundredfold_cpu.drawing import CpuDrawer
from hundredfold_cpu.library import FLOAT, INT, POINTER, Variant, best
from hundredfold_cpu.lookup import capture_lookup
from hundredfold_cpu.program import ROWS, ByRow, KeptProgram, kept_call

SUFFIXES = {torch.float32: "f32", torch.bfloat16: "bf16"}
"""What native functions are called by type of activations."""

_ACTIVATIONS = {Activation.SILU: 0, Activation.GELU: 1, Activation.GELU_TANH: 2}


class CpuElementwise:
    """Fused norms, rotation and gated activations on CPU, in float32 and bfloat16."""

    name = "cpu"
    api_version = API_VERSION
    priority = 10

    def __init__(self, variant: Variant | None = None) -> None:
        self._variant = variant or best()

    def refuses(self, spec: ElementwiseSpec) -> Reasons:
        """Takes float32 and bfloat16 in main memory."""
        reasons = []
        if spec.device.type != "cpu":
            reasons.append(f"computes on CPUs, not on {spec.device.type}")
        if spec.dtype not in SUFFIXES:
            reasons.append(f"computes float32 and bfloat16, not {spec.dtype}")
        return reasons

    def bind(self, spec: ElementwiseSpec) -> CpuOperations:
        """The functions for the spec's type."""
        return CpuOperations(self._variant, spec.dtype)


class CpuOperations:
    """See ``hundredfold.plugin.Elementwise`` and ``CapturingElementwise``."""

    def __init__(self, variant: Variant, dtype: torch.dtype) -> None:
        def function(name: str, *arguments: object):  # type: ignore[no-untyped-def]
            return variant.function(f"{name}_{SUFFIXES[dtype]}", *arguments, release=False)

        p, i, f = POINTER, INT, FLOAT
        self._variant = variant
        self._dtype = dtype
        self._rms_norm = function("rms_norm", p, i, i, i, i, i, p, f, p, i, i)
        self._add_rms_norm = function("add_rms_norm", p, i, p, i, i, i, p, f, p, i)
        self._rotate = function("rotate", p, i, i, i, i, i, i, p)
        self._gated = function("gated", p, i, i, i, i, p, i)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Rows of two or three dimensions as they lie."""
        n = x.shape[-1]
        out = torch.empty(x.shape, dtype=self._dtype)
        if x.dim() > 3 or x.dim() < 2 or x.stride(-1) != 1:
            x = x.reshape(-1, n).contiguous()
        heads, head_stride = _heads(x)
        self._rms_norm(
            x.data_ptr(),
            len(x),
            heads,
            x.stride(0),
            head_stride,
            n,
            weight.data_ptr(),
            eps,
            out.data_ptr(),
            heads * n,
            n,
        )
        return out

    def add_rms_norm(self, residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """One pass for the sum, one for the norm, row by row."""
        if residual.stride(-1) != 1:
            return self.rms_norm(residual.add_(x), weight, eps)
        x = _with_near_columns(x)
        rows, n = x.shape
        out = torch.empty((rows, n), dtype=self._dtype)
        self._add_rms_norm(
            residual.data_ptr(),
            residual.stride(0),
            x.data_ptr(),
            x.stride(0),
            rows,
            n,
            weight.data_ptr(),
            eps,
            out.data_ptr(),
            n,
        )
        return out

    def rotate(self, x: Tensor, rotation: Rotation) -> None:
        """In place, whatever the strides between tokens and heads."""
        if x.stride(-1) != 1:
            turned = x.contiguous()
            self.rotate(turned, rotation)
            x.copy_(turned)
            return
        tokens, heads, _ = x.shape
        pairs = rotation.style is RotaryStyle.PAIRS
        self._rotate(
            x.data_ptr(),
            tokens,
            heads,
            x.stride(0),
            x.stride(1),
            rotation.dim,
            pairs,
            rotation.angles.data_ptr(),
        )

    def gated(self, gate_up: Tensor, activation: Activation) -> Tensor:
        """One pass."""
        gate_up = _with_near_columns(gate_up)
        rows, n = len(gate_up), gate_up.shape[1] // 2
        out = torch.empty((rows, n), dtype=self._dtype)
        self._gated(
            gate_up.data_ptr(), rows, gate_up.stride(0), n, _ACTIVATIONS[activation], out.data_ptr(), n
        )
        return out

    def capture_rms_norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> NativeCall:
        """Of tokens, or of each of their heads."""
        (heads, head_stride), (_, out_head_stride) = _heads(x), _heads(out)
        where = (ByRow(x), ROWS, heads, x.stride(0), head_stride, x.shape[-1])
        to = (ByRow(out), out.stride(0), out_head_stride)
        return self._kept("rms_norm", *where, weight.data_ptr(), eps, *to, held=(x, weight, out))

    def capture_add(self, residual: Tensor, x: Tensor) -> NativeCall:
        """Row by row."""
        both = (ByRow(residual), residual.stride(0), ByRow(x), x.stride(0))
        return self._kept("add", *both, ROWS, x.shape[1], held=(residual, x))

    def capture_add_rms_norm(
        self, residual: Tensor, x: Tensor, weight: Tensor, eps: float, out: Tensor
    ) -> NativeCall:
        """One pass for the sum, one for the norm, row by row."""
        both = (ByRow(residual), residual.stride(0), ByRow(x), x.stride(0), ROWS, x.shape[1])
        to = (ByRow(out), out.stride(0))
        held = (residual, x, weight, out)
        return self._kept("add_rms_norm", *both, weight.data_ptr(), eps, *to, held=held)

    def capture_rotate(self, x: Tensor, rotation: Rotation) -> NativeCall:
        """In place."""
        heads = (ByRow(x), ROWS, x.shape[1], x.stride(0), x.stride(1))
        pairs = int(rotation.style is RotaryStyle.PAIRS)
        angles = rotation.angles
        return self._kept("rotate", *heads, rotation.dim, pairs, ByRow(angles), held=(x, angles))

    def capture_gated(self, gate_up: Tensor, activation: Activation, out: Tensor) -> NativeCall:
        """One pass."""
        halves = (ByRow(gate_up), ROWS, gate_up.stride(0), gate_up.shape[1] // 2)
        to = (_ACTIVATIONS[activation], ByRow(out), out.stride(0))
        return self._kept("gated", *halves, *to, held=(gate_up, out))

    def capture_lookup(
        self, weight: CanonicalWeight, factor: float, rows: Tensor, out: Tensor
    ) -> NativeCall | None:
        """Of float32 tables and grouped integers."""
        return capture_lookup(self._variant, weight, factor, rows, out)

    def program(self, calls: Sequence[NativeCall]) -> KeptProgram:
        """One native call for all."""
        return KeptProgram(calls)

    def drawer(self, spread_ids: NDArray[np.uint32]) -> CpuDrawer:
        """See ``hundredfold.plugin.DrawingElementwise``."""
        return CpuDrawer(self._variant, spread_ids)

    def _kept(self, name: str, *arguments: object, held: Sequence[object]) -> NativeCall:
        return kept_call(self._variant, f"{name}_{SUFFIXES[self._dtype]}", *arguments, held=held)


def _with_near_columns(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _heads(x: Tensor) -> tuple[int, int]:
    """How many rows a token of [tokens, n] or [tokens, heads, n] has, and how far they lie apart."""
    return (x.shape[1], x.stride(1)) if x.dim() == 3 else (1, 0)
