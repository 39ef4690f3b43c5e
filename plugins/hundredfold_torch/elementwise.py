"""Norms, rotation and gated activations in plain torch: the reference; any device and float type."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hundredfold.plugin import (
    API_VERSION,
    Activation,
    ElementwiseSpec,
    Reasons,
    RotaryStyle,
    Rotation,
)


class TorchElementwise:
    """The default where nothing faster is installed."""

    name = "torch"
    api_version = API_VERSION
    priority = 0

    def refuses(self, spec: ElementwiseSpec) -> Reasons:
        """Takes every float type."""
        return [] if spec.dtype.is_floating_point else [f"computes floats, not {spec.dtype}"]

    def bind(self, spec: ElementwiseSpec) -> TorchOperations:
        """The same for every model."""
        return TorchOperations()


class TorchOperations:
    """See ``hundredfold.plugin.Elementwise``."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """torch's own, which computes in float32."""
        return F.rms_norm(x, weight.shape, weight, eps).contiguous()

    def add_rms_norm(self, residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """The sum, then its norm."""
        return self.rms_norm(residual.add_(x), weight, eps)

    def rotate(self, x: Tensor, rotation: Rotation) -> None:
        """Through complex numbers for pairs, half by half otherwise."""
        turned = x[..., : rotation.dim]
        angles = rotation.angles[:, None]
        if rotation.style is RotaryStyle.PAIRS:
            pairs = turned.float().reshape(*turned.shape[:-1], -1, 2)
            product = torch.view_as_complex(pairs) * torch.view_as_complex(angles)
            turned.copy_(torch.view_as_real(product).flatten(-2))
            return
        cosine, sine = angles.unbind(-1)
        left, right = turned.chunk(2, dim=-1)
        first, second = left.float(), right.float()
        rotated = torch.mul(first, cosine).addcmul_(second, sine, value=-1)
        right.copy_(torch.mul(second, cosine).addcmul_(first, sine))
        left.copy_(rotated)

    def gated(self, gate_up: Tensor, activation: Activation) -> Tensor:
        """In float32, rounded once."""
        gate, up = gate_up.chunk(2, dim=-1)
        match activation:
            case Activation.SILU:
                opened = F.silu(gate.float())
            case Activation.GELU:
                opened = F.gelu(gate.float())
            case Activation.GELU_TANH:
                opened = F.gelu(gate.float(), approximate="tanh")
        return opened.mul_(up).to(gate_up.dtype)
