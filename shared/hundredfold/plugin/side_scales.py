"""Scales beside the weights, for inputs, outputs and the cache: checked, and left aside.

Inputs are floats or quantized by token, and quantized caches scale each token and head: both follow the
numbers that are there, where a fixed scale follows those of a calibration.
"""

from __future__ import annotations

import re

from hundredfold.plugin.quantization import LayerRequest, TensorSource
from hundredfold.plugin.reading import FLOATS

OF_INPUTS = ("input_scale", "activation_scale")
OF_LAYERS = (
    *OF_INPUTS,
    *("input_zero_point", "input_global_scale", "activation_scale_inv", "input_scale_inv"),
    *("output_scale", "output_zero_point", "output_global_scale"),
)
OF_CACHES = re.compile(r"(.+\.(?:[qkv]|kv))_(scale|zero_point|global_scale)")
MAX_NUMBERS = 1 << 16
"""Of one such tensor: one for each head at most, or a few."""


def check_side_scales(layer: LayerRequest, tensors: TensorSource) -> bool:
    """Whether the layer has a fixed scale for its inputs. Raises ``ValueError`` when one is no scale."""
    names = tensors.names()
    for part in OF_LAYERS:
        if f"{layer.name}.{part}" in names:
            _check(f"layer '{layer.name}': ", f"{layer.name}.{part}", tensors)
    return any(f"{layer.name}.{part}" in names for part in OF_INPUTS)


def remarks_on(inputs: int, cache: int) -> list[str]:
    """What to tell about fixed scales of the inputs of some layers, and about scales of caches."""
    said = []
    if inputs:
        said.append(f"fixed scales of inputs of {inputs} layers left aside: one for each token loses less")
    if cache:
        said.append(f"{cache} fixed scales of keys and values left aside: caches scale each token and head")
    return said


def check_cache_scales(tensors: TensorSource) -> int:
    """How many tensors hold scales of keys and values. Raises ``ValueError`` when one is no scale."""
    found = sorted(name for name in tensors.names() if OF_CACHES.fullmatch(name))
    for name in found:
        _check("", name, tensors)
    return len(found)


def _check(where: str, name: str, tensors: TensorSource) -> None:
    """Zero points may be anything; scales are few, finite and above zero."""
    stored = tensors.describe(name)
    if name.endswith("_zero_point"):
        return
    count = 1
    for size in stored.shape:
        count *= size
    if stored.encoding not in FLOATS or not 1 <= count <= MAX_NUMBERS:
        raise ValueError(
            f"{where}tensor '{name}' is {stored.encoding} of shape {stored.shape}, expected are 1 to "
            f"{MAX_NUMBERS} floats"
        )
    scales = tensors.dense(name).double()
    if not bool((scales.isfinite() & (scales > 0)).all()):
        raise ValueError(f"{where}tensor '{name}' holds scales that are not finite and above 0")
