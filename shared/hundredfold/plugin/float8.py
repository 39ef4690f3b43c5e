"""Reading 8-bit floats: the codes of a layer, checked for those that are no number.

Only methods of the tensors that are read are used, so that importing this does not import torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hundredfold.plugin.quantization import LayerRequest, TensorSource
from hundredfold.plugin.reading import find_tensor, read_tensor

if TYPE_CHECKING:
    from torch import Tensor

FLOAT8 = ("F8_E4M3", "F8_E5M2")
"""Encodings of 8-bit floats: four bits of exponent and three of fraction, or five and two."""

_LARGEST = {"F8_E4M3": 0x7E, "F8_E5M2": 0x7B}
"""The largest finite number's bits; what is above, the sign aside, is infinite or no number."""


def read_float8_codes(
    layer: LayerRequest, tensors: TensorSource, part: str = "weight", *, encodings: Sequence[str] = FLOAT8
) -> Tensor:
    """``<layer>.<part>`` of the layer's shape, an 8-bit float type.

    Raises ``ValueError`` as ``read_tensor`` does, and when a code stands for no finite number.
    """
    stored = find_tensor(layer, tensors, part, encodings=encodings)
    if bool(((stored.raw & 0x7F) > _LARGEST[stored.encoding]).any()):
        raise ValueError(f"layer '{layer.name}': tensor '{stored.name}' holds numbers that are not finite")
    return read_tensor(layer, tensors, part, encodings=encodings)
