"""Norms, rotation and gated activations in plain torch: the reference; any device and float type."""

from __future__ import annotations

import math

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
        """torch's own, over float32."""
        return F.rms_norm(x.float(), weight.shape, weight, eps).to(x.dtype).contiguous()

    def add_rms_norm(self, residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """The sum, then its norm."""
        return self.rms_norm(residual.add_(x), weight, eps)

    def rotate(self, x: Tensor, rotation: Rotation) -> None:
        """The first of every pair, and the second."""
        turned = x[..., : rotation.dim]
        if rotation.style is RotaryStyle.PAIRS:
            left, right = turned[..., 0::2], turned[..., 1::2]
        else:
            left, right = turned.chunk(2, dim=-1)
        cosine, sine = rotation.angles[:, None].unbind(-1)
        first, second = left.float(), right.float()
        rotated = torch.mul(first, cosine).addcmul_(second, sine, value=-1)
        right.copy_(torch.mul(second, cosine).addcmul_(first, sine))
        left.copy_(rotated)

    def gated(self, gate_up: Tensor, activation: Activation) -> Tensor:
        """In float32, rounded once.

        Spelled out: torch's fused forms give the last columns of an odd row other bits than in a longer one.
        """
        gate, up = gate_up.float().chunk(2, dim=-1)
        match activation:
            case Activation.SILU:
                share = gate.sigmoid()
            case Activation.GELU:
                share = gate.mul(math.sqrt(0.5)).erf_().add_(1).mul_(0.5)
            case Activation.GELU_TANH:
                inner = gate.square().mul_(0.044715).add_(1).mul_(gate).mul_(math.sqrt(2 / math.pi))
                share = inner.tanh_().add_(1).mul_(0.5)
        return share.mul_(gate).mul_(up).to(gate_up.dtype)
