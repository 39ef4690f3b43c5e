"""int8 weights of bitsandbytes: codes with the largest magnitude of each row."""

from __future__ import annotations

import torch

from hundredfold.plugin import ChannelInt8Weight, LayerRequest, TensorSource
from hundredfold.plugin.reading import find_tensor, read_tensor
from hundredfold_bitsandbytes.names import SCALES

LARGEST_CODE = 127

_FORMATS = ("row", "col32", "col_turing", "col_ampere")
"""By the number that ``weight_format`` holds; only the first is a matrix as it stands."""


def read_int8(layer: LayerRequest, tensors: TensorSource) -> ChannelInt8Weight:
    """The layer's weight, ``code * (SCB / 127)``. Raises ``ValueError`` naming layer and tensor."""
    _check_format(layer, tensors)
    codes = read_tensor(layer, tensors, encodings=("I8",))
    largest = read_tensor(layer, tensors, SCALES, shape=layer.shape[:1], encodings=("F32",))
    if not bool(torch.isfinite(largest).all()):
        raise ValueError(
            f"layer '{layer.name}': tensor '{layer.name}.{SCALES}' holds numbers that are not finite"
        )
    return ChannelInt8Weight(codes, largest / LARGEST_CODE)


def _check_format(layer: LayerRequest, tensors: TensorSource) -> None:
    """Old files have no such tensor and are in rows; tiled ones were written for certain GPUs."""
    part = "weight_format"
    if f"{layer.name}.{part}" not in tensors.names():
        return
    find_tensor(layer, tensors, part, shape=(), encodings=("U8",))
    kind = int(read_tensor(layer, tensors, part, shape=()))
    if kind:
        said = _FORMATS[kind] if kind < len(_FORMATS) else str(kind)
        raise ValueError(
            f"layer '{layer.name}': tensor '{layer.name}.{part}' says {said}; only row is read, save it anew "
            "with bitsandbytes 0.42 or later"
        )
