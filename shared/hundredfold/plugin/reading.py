"""Find, check and read a layer's tensors: what every format does before its own work begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hundredfold.plugin.quantization import LayerRequest, StoredTensor, TensorSource

if TYPE_CHECKING:
    from torch import Tensor

FLOATS = ("F64", "F32", "F16", "BF16")
"""Encodings of plain floats."""


def find_tensor(
    layer: LayerRequest,
    tensors: TensorSource,
    part: str = "weight",
    *,
    shape: Sequence[int] | None = None,
    encodings: Sequence[str] = (),
) -> StoredTensor:
    """The record of ``<layer>.<part>``; nothing is read.

    ``shape`` is what it has to be, the layer's own when unset; any of ``encodings`` will do, all when empty.
    Raises ``ValueError`` naming layer, tensor, what it is and what was expected.
    """
    name, wanted = f"{layer.name}.{part}", tuple(layer.shape if shape is None else shape)
    where = f"layer '{layer.name}': tensor '{name}'"
    if name not in tensors.names():
        raise ValueError(f"{where} is missing")
    stored = tensors.describe(name)
    if stored.shape != wanted:
        raise ValueError(f"{where} has shape {stored.shape}, expected is {wanted}")
    if encodings and stored.encoding not in encodings:
        raise ValueError(f"{where} is {stored.encoding}, expected is {' or '.join(encodings)}")
    return stored


def read_tensor(
    layer: LayerRequest,
    tensors: TensorSource,
    part: str = "weight",
    *,
    shape: Sequence[int] | None = None,
    encodings: Sequence[str] = (),
) -> Tensor:
    """The same, read in its stored type. Raises ``ValueError`` also when its bytes cannot be read."""
    stored = find_tensor(layer, tensors, part, shape=shape, encodings=encodings)
    try:
        return tensors.dense(stored.name)
    except (ValueError, NotImplementedError) as error:
        raise ValueError(
            f"layer '{layer.name}': tensor '{stored.name}' of type {stored.encoding} cannot be read: {error}"
        ) from error


def read_scales(
    layer: LayerRequest,
    tensors: TensorSource,
    part: str,
    *,
    shape: Sequence[int],
    encodings: Sequence[str] = FLOATS,
) -> Tensor:
    """Scales in their stored type. Raises ``ValueError`` as ``read_tensor``, and where one is not finite."""
    scales = read_tensor(layer, tensors, part, shape=shape, encodings=encodings)
    if not bool(scales.double().isfinite().all()):
        raise ValueError(
            f"layer '{layer.name}': tensor '{layer.name}.{part}' holds numbers that are not finite"
        )
    return scales
