"""int8 weights with a scale per output channel, rotated first so that no input column stands out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hundredfold.plugin import (
    API_VERSION,
    Activations,
    BlockHadamard,
    CanonicalWeight,
    ChannelInt8Weight,
    LayerOutline,
    LayerRequest,
    Reasons,
    WeightForm,
)
from hundredfold.plugin.dequantize import rotate
from hundredfold.plugin.forms import by_channel

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 64
"""Columns that are rotated together, fewer where they do not divide the layer's."""

LARGEST_CODE = 127

PIECE = 1 << 22
"""Elements of the matrix that are float32 at a time."""


class Int8:
    """int8 weights by output channel and int8 inputs by token, both behind a block-Hadamard rotation."""

    name = "int8"
    api_version = API_VERSION
    activations = Activations.INT8
    makes = ChannelInt8Weight

    def refuses(self, layer: LayerRequest) -> Reasons:
        """Takes every layer."""
        return []

    def quantize(self, layer: LayerRequest, matrix: Tensor) -> CanonicalWeight:
        """Rotate, then round by row. Raises ``ValueError`` when a number is not finite."""
        import torch  # not before: estimates ask for forms alone

        rows, columns = matrix.shape
        block = min(BLOCK, columns & -columns)
        codes = torch.empty((rows, columns), dtype=torch.int8, device=matrix.device)
        scales = torch.empty(rows, device=matrix.device)
        at_once = max(1, PIECE // columns)
        for first in range(0, rows, at_once):
            piece = slice(first, first + at_once)
            rotated = rotate(matrix[piece], block)
            scales[piece] = rotated.abs().amax(1) / LARGEST_CODE
            # A row of zeros has codes of zero, whatever it is divided by.
            divisor = scales[piece].clamp_min(torch.finfo(torch.float32).tiny)
            codes[piece] = (rotated / divisor[:, None]).round_().clamp_(-LARGEST_CODE, LARGEST_CODE)
        if not bool(torch.isfinite(scales).all()):
            raise ValueError(f"layer '{layer.name}': weights are not finite")
        return ChannelInt8Weight(codes, scales, BlockHadamard(block) if block > 1 else None)

    def form(self, layer: LayerOutline) -> WeightForm | None:
        """See ``StatingForms``."""
        return by_channel()
