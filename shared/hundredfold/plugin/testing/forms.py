"""What a plugin states of a layer beforehand equals what it then makes of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import torch

from hundredfold.plugin import (
    CanonicalWeight,
    Codebook4Weight,
    DenseWeight,
    GroupedIntWeight,
    LayerOutline,
    LayerRequest,
    StatingForms,
    StoredTensor,
    TensorHeader,
    WeightForm,
)
from hundredfold.plugin.testing.report import require

SHARE = 0.02
"""Of the bytes: what may be untold."""
UNTOLD, OF_COLUMNS = 256, 4
"""Bytes that a configuration need not tell: a record's text; a number for each column, left out by some."""


def check_stated(
    plugin: object,
    layer: LayerRequest,
    weight: CanonicalWeight,
    case: str,
    tensors: Mapping[str, StoredTensor] | None = None,
    used: Collection[str] = (),
) -> None:
    """Compare the form with ``weight``, and its bytes with the tensors that were ``used`` for it.

    With ``tensors`` the layer is asked for twice, with their headers and by the configuration alone, which
    may not be enough. Who states nothing is held to nothing. Raises ``NonConformance``.
    """
    if not isinstance(plugin, StatingForms):
        return
    if tensors is None:
        _same(plugin.form(LayerOutline(layer.name, layer.shape)), weight, case)
        return
    headers = {
        name: TensorHeader(stored.encoding, stored.shape, stored.raw.nbytes)
        for name, stored in tensors.items()
    }
    own = [name for name in used if name.startswith(f"{layer.name}.") and name in tensors]
    actual = sum(tensors[name].raw.nbytes for name in own)
    form = plugin.form(LayerOutline(layer.name, layer.shape, headers=headers))
    _same(form, weight, f"{case}, by its headers")
    _same_bytes(form, actual, 0, f"{case}, by its headers")
    try:
        form = plugin.form(LayerOutline(layer.name, layer.shape))
    except ValueError as error:
        require(layer.name in str(error), f"{case}: the message does not name the layer: {error}")
        return
    if form is not None and isinstance(weight, GroupedIntWeight):
        form = replace(form, half_scales=weight.scales.dtype is torch.float16)  # no configuration tells
    _same(form, weight, case)
    _same_bytes(form, actual, UNTOLD + OF_COLUMNS * layer.shape[1], case)


def _same(form: WeightForm | None, weight: CanonicalWeight, case: str) -> None:
    made = type(weight).__name__
    if form is None:
        require(isinstance(weight, DenseWeight), f"{case}: stated are plain floats, made is {made}")
        return
    require(form.makes is type(weight), f"{case}: stated is {form.makes.__name__}, made is {made}")
    if isinstance(weight, GroupedIntWeight | Codebook4Weight):
        group = (form.group_size, weight.group_size)
        require(group[0] == group[1], f"{case}: stated are groups of {group[0]}, made are {group[1]}")
    if isinstance(weight, GroupedIntWeight):
        require(form.bits == weight.bits, f"{case}: stated are {form.bits} bits, made are {weight.bits}")
        half = weight.scales.dtype is torch.float16
        require(form.half_scales is half, f"{case}: half_scales is {form.half_scales}, made is {half}")
        zeros = weight.zeros
        shared = zeros is None or bool((zeros == zeros.flatten()[0]).all())
        right = shared if form.zero is None else zeros is not None and form.zero is weight.zero
        require(right, f"{case}: zero is {form.zero}, made is {None if shared else weight.zero}")


def _same_bytes(form: WeightForm | None, actual: int, untold: int, case: str) -> None:
    if form is None:
        return
    allowed = SHARE * actual + untold
    told = f"{case}: stated are {form.stored_bytes} bytes in the checkpoint, its tensors have {actual}"
    require(abs(form.stored_bytes - actual) <= allowed, told)
