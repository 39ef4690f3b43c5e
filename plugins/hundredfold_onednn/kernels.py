"""Linear layers on CPU through oneDNN with weights packed once, the way torch's own compiler does it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from hundredfold.plugin import API_VERSION, InputTransform, LinearSpec, Reasons
from hundredfold.plugin.dequantize import dequantize, transform_input

PACKED_FOR = 64
"""Rows of input that oneDNN packs for. So packed, a float32 row gets the same bits at every batch size
(packed for 1 it does not), and neither one row nor 256 is measurably slower than packed for itself."""


@dataclass(frozen=True, slots=True)
class OneDnnLinear:
    """A dense matrix in oneDNN's blocked arrangement."""

    packed: Tensor
    bias: Tensor | None
    transform: InputTransform | None
    nbytes: int
    recipe: str

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` [M, K] to [M, N]."""
        x = transform_input(x, self.transform)
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return y


class OneDnnKernels:
    """Dense products in bf16 and fp32 with weights packed at load."""

    name = "onednn"
    api_version = API_VERSION
    priority = 10

    def refuses(self, spec: LinearSpec) -> Reasons:
        """Takes every canonical weight where torch was built with oneDNN and the processor has the type."""
        if spec.device.type != "cpu":
            return [f"runs on cpu, not on {spec.device.type}"]
        if spec.dtype not in (torch.float32, torch.bfloat16):
            return [f"computes in float32 and bfloat16, not in {_name(spec.dtype)}"]
        problem = _problem(spec.dtype)
        return [problem] if problem else []

    def prepare(self, spec: LinearSpec, bias: Tensor | None) -> OneDnnLinear:
        """Dequantize to the compute type and pack."""
        weight = dequantize(spec.weight, spec.dtype)
        bias = None if bias is None else bias.to(spec.dtype)
        return OneDnnLinear(
            packed=_pack(weight),
            bias=bias,
            transform=spec.weight.transform,
            nbytes=weight.nbytes + (0 if bias is None else bias.nbytes),
            recipe=f"weights dequantized at load to {_name(spec.dtype)} and packed, oneDNN's product",
        )


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_FOR)
    return packed


@cache
def _problem(dtype: torch.dtype) -> str:
    """Why this torch on this processor cannot, found by trying; empty when it can."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "this torch was built without oneDNN"
    try:
        packed = _pack(torch.ones(16, 16, dtype=dtype))
        y = torch.ops.mkldnn._linear_pointwise(torch.ones(1, 16, dtype=dtype), packed, None, "none", [], "")
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        return f"oneDNN refuses {_name(dtype)} here: {str(error).splitlines()[0]}"
    if not bool((y == 16).all()):
        return f"oneDNN computes {_name(dtype)} wrongly here"
    return ""


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
