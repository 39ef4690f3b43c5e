"""The elementwise contract: what stands between a decoder's products, each as one fused operation."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hundredfold.plugin.reasons import Reasons

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@enum.unique
class Activation(enum.Enum):
    """The closed set of functions that a gate may have."""

    SILU = "silu"
    """``x * sigmoid(x)``."""
    GELU = "gelu"
    """``x * Phi(x)``, with the error function."""
    GELU_TANH = "gelu_tanh"
    """``gelu`` in its tanh approximation."""


@enum.unique
class RotaryStyle(enum.Enum):
    """Which pairs of a head's columns rotate together."""

    HALVES = "halves"
    """Column ``i`` with ``i + rotary_dim / 2``, as checkpoints of the transformers library have it."""
    PAIRS = "pairs"
    """Column ``2 i`` with ``2 i + 1``."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """The rotation of a step's tokens: made once a step, used by every layer of its kind."""

    dim: int
    """Leading columns of a head that rotate; even. The others stay."""
    style: RotaryStyle
    angles: Tensor
    """float32[T, dim / 2, 2], contiguous: cosine and sine."""


@dataclass(frozen=True, slots=True)
class ElementwiseSpec:
    """What a model needs."""

    device: torch.device
    dtype: torch.dtype
    """Type of activations."""
    activations: frozenset[Activation]
    """Every gate's function."""


class Elementwise(Protocol):
    """The operations, bound to a spec. Each computes in float32 and rounds to the spec's type once.

    Every row is computed alone and in one order of sums: neither other rows nor threads change its bits.
    Any strides are right; only rows whose last dimension is contiguous need be fast. Results are contiguous
    and new.
    """

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """``x / sqrt(mean(x ** 2) + eps) * weight`` over the last dimension of ``x`` [..., n].

        The result has the shape of ``x``. ``weight`` is float32[n] whatever the spec's type: it may be near
        1 and matter by its distance to it.
        """

    def add_rms_norm(self, residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add ``x`` [T, n] to ``residual`` [T, n] in place; returns the norm of the sum as it was stored."""

    def rotate(self, x: Tensor, rotation: Rotation) -> None:
        """Rotate the heads ``x`` [T, heads, head_dim] in place."""

    def gated(self, gate_up: Tensor, activation: Activation) -> Tensor:
        """``activation(gate) * up`` of ``gate_up`` [T, 2 n], the gates first; returns [T, n]."""


class ElementwisePlugin(Protocol):
    """Group ``hundredfold.elementwise``."""

    name: str
    api_version: int
    priority: int
    """Higher is asked first; the torch reference has 0."""

    def refuses(self, spec: ElementwiseSpec) -> Reasons:
        """Why this plugin cannot compute for such a model; empty when it can."""

    def bind(self, spec: ElementwiseSpec) -> Elementwise:
        """The operations for this model."""
