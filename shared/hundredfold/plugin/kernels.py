"""The kernel contract: multiply by canonical weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hundredfold.plugin.reasons import Reasons
from hundredfold.plugin.weights import CanonicalWeight

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """One linear layer, as far as a kernel has to know it before it sees the weight's numbers."""

    name: str
    """The layer's parameter name, for messages."""
    weight: CanonicalWeight
    device: torch.device
    dtype: torch.dtype
    """Type of the input and of the output."""

    @property
    def shape(self) -> tuple[int, int]:
        """Output and input features (N, K)."""
        matrix = getattr(self.weight, "codes", None)
        n, k = (matrix if matrix is not None else self.weight.weight).shape  # type: ignore[union-attr]
        return int(n), int(k)


class Linear(Protocol):
    """A layer ready to run: holds the weight in the kernel's own arrangement."""

    @property
    def nbytes(self) -> int:
        """Bytes that the arranged weight occupies, whether it is a copy or the tensors it was given."""

    @property
    def recipe(self) -> str:
        """How it computes, in a few words for reports: weights, activations, accumulation."""

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` [M, K] of the spec's type to [M, N] of the same type, bias included."""


class KernelPlugin(Protocol):
    """Group ``hundredfold.kernels``. The same layer gets the same arithmetic at every batch size."""

    name: str
    api_version: int
    priority: int
    """Higher is asked first; the torch reference has 0."""

    def refuses(self, spec: LinearSpec) -> Reasons:
        """Why this kernel cannot compute the layer; empty when it can."""

    def prepare(self, spec: LinearSpec, bias: Tensor | None) -> Linear:
        """Arrange the weight. ``bias`` is [N] or None. Called once per layer, on the device thread."""
