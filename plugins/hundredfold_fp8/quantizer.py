"""8-bit floats with a scale per output channel, made while a model loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hundredfold.plugin import (
    API_VERSION,
    Activations,
    CanonicalWeight,
    Float8Weight,
    LayerOutline,
    LayerRequest,
    Reasons,
    WeightForm,
)
from hundredfold.plugin.forms import float8

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 448.0
"""Of e4m3."""

PIECE = 1 << 22
"""Elements of the matrix that are float32 at a time."""


class Fp8Channels:
    """e4m3 by output channel; inputs stay floats."""

    name = "fp8"
    api_version = API_VERSION
    activations = Activations.FLOAT

    def refuses(self, layer: LayerRequest) -> Reasons:
        """Takes every layer."""
        return []

    def quantize(self, layer: LayerRequest, matrix: Tensor) -> CanonicalWeight:
        """Round by row. Raises ``ValueError`` when a number is not finite."""
        import torch  # not before: estimates ask for forms alone

        rows, columns = matrix.shape
        codes = torch.empty((rows, columns), dtype=torch.float8_e4m3fn, device=matrix.device)
        scales = torch.empty((rows, 1), device=matrix.device)
        at_once = max(1, PIECE // columns)
        for first in range(0, rows, at_once):
            piece = slice(first, first + at_once)
            numbers = matrix[piece].float()
            scales[piece] = numbers.abs().amax(1, keepdim=True) / LARGEST
            # A row of zeros has codes of zero, whatever it is divided by.
            numbers = numbers / scales[piece].clamp_min(torch.finfo(torch.float32).tiny)
            codes[piece] = numbers.clamp_(-LARGEST, LARGEST).to(codes.dtype)
        if not bool(torch.isfinite(scales).all()):
            raise ValueError(f"layer '{layer.name}': weights are not finite")
        return Float8Weight(codes, scales)

    def form(self, layer: LayerOutline) -> WeightForm | None:
        """See ``StatingForms``."""
        return float8("by channel")
