"""What is quantized while a model loads: by a quantizer that was named, or by the one that is fast here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

from hundredfold.errors import StartError
from hundredfold.plugin import Activations, LayerOutline, LayerRole, Quantizer, StatingForms, WeightForm
from hundredfold.plugin.registry import PluginError, Registry
from hundredfold_worker.estimate.formats import asking
from hundredfold_worker.estimate.parts import Chooser, Part

GROUP = "hundredfold.quantizers"
FAST = "fast"


@dataclass(frozen=True, slots=True)
class AtLoad:
    """The forms in memory."""

    forms: Chooser
    for_int8_inputs: bool = False
    """Whether the weights are meant for them."""


def is_quantizer(name: str) -> bool:
    """Whether one is installed by this name."""
    return name in Registry(GROUP).names()


def named(name: str, exclude: Sequence[str], stored: Chooser) -> AtLoad:
    """What a quantizer makes of the linear layers. Raises ``StartError`` when it is not there, or mute."""
    try:
        quantizer: Quantizer = Registry(GROUP).get(name)
    except PluginError as error:
        raise StartError(str(error)) from error
    return _by(quantizer, exclude, stored, keep_made=False)


def fast(device: str, activations: str, exclude: Sequence[str], stored: Chooser) -> AtLoad:
    """What the quantizer makes whose weights a kernel favours here; as stored where there is none."""
    import torch  # kernels know their processor, and need it for that

    from hundredfold_worker.model.on_the_fly import favoured

    registries = {group: Registry(group) for group in (GROUP, "hundredfold.kernels")}
    found = favoured(registries, (), torch.device(device), activations)
    return AtLoad(stored) if found is None else _by(found.quantizer, exclude, stored, keep_made=True)


def for_int8(stored: Chooser) -> tuple[str, AtLoad] | None:
    """The first quantizer whose weights are meant for int8 inputs, with its name."""
    for name, quantizer in Registry(GROUP).candidates():
        if quantizer.activations is Activations.INT8 and isinstance(quantizer, StatingForms):
            return name, named(name, (), stored)
    return None


def _by(quantizer: Quantizer, exclude: Sequence[str], stored: Chooser, *, keep_made: bool) -> AtLoad:
    """``keep_made``: what is of the quantizer's form already stays as it is."""
    if not isinstance(quantizer, StatingForms):
        raise StartError(
            f"quantization '{quantizer.name}' does not say what it makes of a layer (it has no method "
            "'form'): nothing can be told before it is loaded"
        )

    @cache
    def choose_form(part: Part) -> WeightForm:
        own = stored(part)
        excepted = any(fnmatchcase(part.name, pattern) for pattern in exclude)
        if excepted or part.role in (LayerRole.TABLE, LayerRole.ROUTER):
            return own
        layer = LayerOutline(part.name, (part.rows, part.columns), part.role)
        made = asking(quantizer.name, lambda: quantizer.form(layer))
        return own if made is None or (keep_made and made.makes is own.makes) else made

    return AtLoad(choose_form, quantizer.activations is Activations.INT8)
