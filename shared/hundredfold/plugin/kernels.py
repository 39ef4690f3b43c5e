"""The kernel contract: multiply by canonical weights."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from hundredfold.plugin.reasons import PROMISES_NOTHING, Reasons
from hundredfold.plugin.weights import CanonicalWeight

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@enum.unique
class Activations(enum.Enum):
    """How a layer's input is multiplied: part of its recipe, chosen at load, the same for every batch."""

    FLOAT = "float"
    """As the floats that it consists of, in the compute type."""
    INT8 = "int8"
    """Quantized to int8, integers times integers. Defined in ``hundredfold.plugin.integer``, for grouped
    integer weights with a scale for each group."""


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """One linear layer, as far as a kernel has to know it before it sees the weight's numbers."""

    name: str
    """The layer's parameter name, for messages."""
    weight: CanonicalWeight
    device: torch.device
    dtype: torch.dtype
    """Type of the input and of the output."""
    activations: Activations = Activations.FLOAT
    """How the input is to be multiplied; a kernel refuses what it cannot do and takes nothing else for it."""
    batch_invariant: bool = False
    """Whether a row has to have the same bits in every batch; asked of an ``InvariantKernel`` only."""

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


@runtime_checkable
class StoredLinear(Linear, Protocol):
    """A ``Linear`` that says where its weight lies, so that it can be kept in a file."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What a product reads; on a CPU, strided, at addresses that stay, and not written to again."""


class KernelPlugin(Protocol):
    """Group ``hundredfold.kernels``. The same layer gets the same arithmetic at every batch size.

    A kernel that multiplies quantized inputs has an attribute ``activations``, a tuple of all ``Activations``
    that it knows; others are never asked for anything but float.
    """

    name: str
    api_version: int
    priority: int
    """Higher is asked first; the torch reference has 0."""

    def refuses(self, spec: LinearSpec) -> Reasons:
        """Why this kernel cannot compute the layer; empty when it can."""

    def prepare(self, spec: LinearSpec, bias: Tensor | None) -> Linear:
        """Arrange the weight. ``bias`` is [N] or None. Called once per layer, on the device thread."""


@runtime_checkable
class InvariantKernel(Protocol):
    """A ``KernelPlugin`` of whose layers some give a row the same bits alone and in every batch."""

    def varies(self, spec: LinearSpec) -> Reasons:
        """Why bits of the layer's rows may depend on how many there are; empty where they never do."""


@runtime_checkable
class FavouringKernel(Protocol):
    """A ``KernelPlugin`` that multiplies some forms of weights several times as fast as others here."""

    def favours(self, device: torch.device) -> tuple[type[CanonicalWeight], ...]:
        """Those forms, the best first; for them ``quantization=fast`` quantizes at load."""


def kernel_reasons(kernel: KernelPlugin, spec: LinearSpec) -> Reasons:
    """Why ``kernel`` cannot compute the layer as ``spec`` says; empty when it can."""
    known: tuple[Activations, ...] = getattr(kernel, "activations", (Activations.FLOAT,))
    if spec.activations not in known:
        return [f"does not multiply inputs as {spec.activations.value}"]
    if not spec.batch_invariant:
        return kernel.refuses(spec)
    if not isinstance(kernel, InvariantKernel):
        return [PROMISES_NOTHING]
    return [*kernel.refuses(spec), *kernel.varies(spec)]
