"""Dense matrices quantized by the bitsandbytes library while a model loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hundredfold.plugin import (
    API_VERSION,
    Activations,
    CanonicalWeight,
    ChannelInt8Weight,
    Codebook4Weight,
    LayerOutline,
    LayerRequest,
    Reasons,
    WeightForm,
)
from hundredfold.plugin.forms import by_channel, codebook
from hundredfold_bitsandbytes.codebooks import CODEBOOKS
from hundredfold_bitsandbytes.forms import BLOCK
from hundredfold_bitsandbytes.library import functional, missing

if TYPE_CHECKING:
    from torch import Tensor


class Nf4:
    """4-bit nf4 in blocks of 64, as transformers quantizes with bitsandbytes."""

    name = "bitsandbytes-nf4"
    api_version = API_VERSION
    activations = Activations.FLOAT

    def unavailable(self) -> Reasons:
        """The library, when it is not installed."""
        return missing()

    def refuses(self, layer: LayerRequest) -> Reasons:
        """Takes layers whose rows are whole blocks, so that a row does not depend on its neighbour."""
        reasons = missing()
        if layer.shape[1] % BLOCK:
            reasons.append(f"{layer.shape[1]} columns are no multiple of the block of {BLOCK}")
        return reasons

    def quantize(self, layer: LayerRequest, matrix: Tensor) -> CanonicalWeight:
        """Raises ``ValueError`` when a number is not finite, or the library cannot be used."""
        import torch  # not before: estimates ask for forms alone

        from hundredfold_bitsandbytes.four_bit import unpack

        packed, state = functional().quantize_4bit(
            matrix.contiguous(), blocksize=BLOCK, compress_statistics=False, quant_type="nf4"
        )
        scales = state.absmax.float()
        _require_finite(layer, scales)
        values = torch.tensor(CODEBOOKS["nf4"], device=matrix.device)
        return Codebook4Weight(unpack(packed.flatten(), layer.shape), values, scales, BLOCK)

    def form(self, layer: LayerOutline) -> WeightForm | None:
        """See ``StatingForms``."""
        return None if layer.shape[1] % BLOCK else codebook(f"nf4 g{BLOCK}", BLOCK)


class Int8:
    """int8 by output channel, as transformers quantizes with bitsandbytes; inputs stay floats."""

    name = "bitsandbytes-int8"
    api_version = API_VERSION
    activations = Activations.FLOAT

    def unavailable(self) -> Reasons:
        """The library, when it is not installed."""
        return missing()

    def refuses(self, layer: LayerRequest) -> Reasons:
        """Takes every layer."""
        return missing()

    def quantize(self, layer: LayerRequest, matrix: Tensor) -> CanonicalWeight:
        """Raises ``ValueError`` when a number is not finite in float16, or the library cannot be used."""
        import torch

        from hundredfold_bitsandbytes.int8 import LARGEST_CODE

        codes, largest, _ = functional().int8_vectorwise_quant(matrix.to(torch.float16))
        _require_finite(layer, largest)
        return ChannelInt8Weight(codes, largest.float() / LARGEST_CODE)

    def form(self, layer: LayerOutline) -> WeightForm | None:
        """See ``StatingForms``."""
        return by_channel()


def _require_finite(layer: LayerRequest, scales: Tensor) -> None:
    if not bool(scales.isfinite().all()):
        raise ValueError(f"layer '{layer.name}': weights are not finite")
