"""The quantizer contract: quantize a dense matrix while a model loads, whatever its checkpoint's format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from hundredfold.plugin.kernels import Activations
from hundredfold.plugin.quantization import LayerRequest
from hundredfold.plugin.reasons import Reasons
from hundredfold.plugin.weights import CanonicalWeight

if TYPE_CHECKING:
    from torch import Tensor


class Quantizer(Protocol):
    """Group ``hundredfold.quantizers``. Users ask for one by name where they would name a format.

    One that has an attribute ``makes``, the type of its weights, is taken by ``quantization=fast`` where a
    kernel favours that type.
    """

    name: str
    api_version: int
    activations: Activations
    """What its weights are meant to be multiplied by, where a kernel can and nothing else was asked for."""

    def refuses(self, layer: LayerRequest) -> Reasons:
        """Why a layer cannot be quantized; it stays as the checkpoint has it. Empty when it can."""

    def quantize(self, layer: LayerRequest, matrix: Tensor) -> CanonicalWeight:
        """Quantize ``matrix``, a float type [N, K], which is not changed.

        An input transform is folded in: the weight stands for the same layer. A row's codes and scales depend
        on that row alone, so that rows of several layers can be joined before or after.
        """
