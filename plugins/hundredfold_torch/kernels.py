"""Reference linear layers for every canonical weight: dequantize once, then torch's ``linear``."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from hundredfold.plugin import API_VERSION, InputTransform, LinearSpec, Reasons
from hundredfold.plugin.dequantize import dequantize, transform_input


@dataclass(frozen=True, slots=True)
class TorchLinear:
    """A dense matrix, on whatever device it lies."""

    weight: Tensor
    bias: Tensor | None
    transform: InputTransform | None
    nbytes: int
    recipe: str

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` [M, K] to [M, N]."""
        return F.linear(transform_input(x, self.transform), self.weight, self.bias)


class TorchKernels:
    """The oracle of every other kernel: small, and available on any machine."""

    name = "torch"
    api_version = API_VERSION
    priority = 0

    def refuses(self, spec: LinearSpec) -> Reasons:
        """Takes every canonical weight in a float type."""
        return [] if spec.dtype.is_floating_point else [f"computes in float types, not in {spec.dtype}"]

    def prepare(self, spec: LinearSpec, bias: Tensor | None) -> TorchLinear:
        """Dequantize to the compute type. A dense weight of that type is used as it lies."""
        weight = dequantize(spec.weight, spec.dtype).to(spec.device)
        bias = None if bias is None else bias.to(spec.device, spec.dtype)
        type_name = str(spec.dtype).removeprefix("torch.")
        return TorchLinear(
            weight=weight,
            bias=bias,
            transform=spec.weight.transform,
            nbytes=weight.nbytes + (0 if bias is None else bias.nbytes),
            recipe=f"weights dequantized at load to {type_name}, torch's own product",
        )
