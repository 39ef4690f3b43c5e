"""Reference linear layers: dequantized once for torch's ``linear``, or integers times integers as defined."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from hundredfold.plugin import (
    API_VERSION,
    Activations,
    ChannelInt8Weight,
    GroupedIntWeight,
    InputTransform,
    Linear,
    LinearSpec,
    Reasons,
)
from hundredfold.plugin.dequantize import dequantize, transform_input
from hundredfold.plugin.integer import GroupedTerms, grouped_terms, multiply_channels, multiply_grouped


@dataclass(frozen=True, slots=True)
class TorchLinear:
    """A dense matrix, on whatever device it lies."""

    weight: Tensor
    bias: Tensor | None
    transform: InputTransform | None
    nbytes: int
    recipe: str

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """See ``StoredLinear``."""
        return (self.weight,)

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` [M, K] to [M, N]."""
        return F.linear(transform_input(x, self.transform), self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class TorchIntegers:
    """Grouped integers that meet a quantized input; slow, and exactly as the definition has it."""

    terms: GroupedTerms
    bias: Tensor | None
    transform: InputTransform | None
    nbytes: int
    recipe: str

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """See ``StoredLinear``."""
        kept = (self.terms.codes, self.terms.scales, self.terms.offsets)
        return tuple(tensor for tensor in kept if tensor is not None)

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` [M, K] to [M, N]."""
        return multiply_grouped(transform_input(x, self.transform), self.terms, self.bias)


@dataclass(frozen=True, slots=True)
class TorchChannels:
    """int8 weights by channel that meet a quantized input; slow, and exactly as the definition has it."""

    weight: ChannelInt8Weight
    bias: Tensor | None

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and bias."""
        kept = (self.weight.codes, self.weight.scales, self.bias)
        return sum(tensor.nbytes for tensor in kept if tensor is not None)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """See ``StoredLinear``."""
        return (self.weight.codes, self.weight.scales)

    @property
    def recipe(self) -> str:
        """See ``Linear``."""
        return "int8 weights by channel, inputs in int8 by token, torch's own product of the integers"

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` [M, K] to [M, N]."""
        return multiply_channels(x, self.weight, self.bias)


_INTEGERS = (GroupedIntWeight, ChannelInt8Weight)


class TorchKernels:
    """The oracle of every other kernel: small, and available on any machine."""

    name = "torch"
    api_version = API_VERSION
    priority = 0
    activations = (Activations.FLOAT, Activations.INT8)

    def refuses(self, spec: LinearSpec) -> Reasons:
        """Takes every canonical weight in a float type; inputs as int8 for integers."""
        reasons = [] if spec.dtype.is_floating_point else [f"computes in float types, not in {spec.dtype}"]
        if spec.activations is Activations.INT8 and not isinstance(spec.weight, _INTEGERS):
            reasons.append(f"{type(spec.weight).__name__} has no product with int8 inputs")
        return reasons

    def varies(self, spec: LinearSpec) -> Reasons:
        """Sums of integers have no order; torch's own sums of floats depend on the shape of the product."""
        if spec.activations is Activations.INT8:
            return []
        return ["torch's product adds in an order that depends on the number of rows"]

    def prepare(self, spec: LinearSpec, bias: Tensor | None) -> Linear:
        """Dequantize to the compute type, or keep integers. A dense weight of the type is used as it lies."""
        bias = None if bias is None else bias.to(spec.device, spec.dtype)
        if spec.activations is Activations.INT8 and isinstance(spec.weight, GroupedIntWeight):
            return _integers(spec.weight, bias)
        if spec.activations is Activations.INT8 and isinstance(spec.weight, ChannelInt8Weight):
            return TorchChannels(spec.weight, bias)
        weight = dequantize(spec.weight, spec.dtype).to(spec.device)
        type_name = str(spec.dtype).removeprefix("torch.")
        return TorchLinear(
            weight=weight,
            bias=bias,
            transform=spec.weight.transform,
            nbytes=weight.nbytes + (0 if bias is None else bias.nbytes),
            recipe=f"weights dequantized at load to {type_name}, torch's own product",
        )


def _integers(weight: GroupedIntWeight, bias: Tensor | None) -> TorchIntegers:
    terms = grouped_terms(weight)
    kept = (terms.codes, terms.scales, terms.offsets, bias)
    return TorchIntegers(
        terms=terms,
        bias=bias,
        transform=weight.transform,
        nbytes=sum(tensor.nbytes for tensor in kept if tensor is not None),
        recipe=f"weights in {weight.bits} bits, inputs in int8 by group, torch's own product of the integers",
    )
