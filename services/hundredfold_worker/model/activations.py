"""Which layers multiply quantized inputs: what is asked for, and what ``auto`` makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from hundredfold.plugin import Activations, CanonicalWeight, ChannelInt8Weight, GroupedIntWeight
from hundredfold_worker.model.errors import ModelLoadError
from hundredfold_worker.model.loaded import Selection

AUTO = "auto"
INTEGERS: tuple[type[CanonicalWeight], ...] = (GroupedIntWeight, ChannelInt8Weight)
"""Weights that have a product with int8 inputs."""


@dataclass(frozen=True, slots=True)
class ActivationsPolicy:
    """The recipes that a layer may get."""

    asked: str
    """``auto``, ``float`` or ``int8``."""
    dtype: str
    """The compute type that was asked for, ``auto`` when none was."""
    device: torch.device
    meant: Activations = Activations.FLOAT
    """What a quantizer that was asked for makes its weights for."""

    def __post_init__(self) -> None:
        known = [AUTO, *(kind.value for kind in Activations)]
        if self.asked not in known:
            raise ModelLoadError(f"activations '{self.asked}' is unknown; known are {', '.join(known)}")

    def recipes(self, weight: CanonicalWeight) -> tuple[Activations, ...]:
        """In order of preference; a kernel that takes none of them is not for the layer."""
        if self.asked == Activations.FLOAT.value or not isinstance(weight, INTEGERS):
            return (Activations.FLOAT,)
        if self.asked == Activations.INT8.value:
            return (Activations.INT8,)
        if self._auto_against():
            return (Activations.FLOAT,)
        return (Activations.INT8, Activations.FLOAT)

    def selection(self, layers: Mapping[Activations, int]) -> Selection:
        """The outcome, from how many linear layers got each recipe.

        Raises ``ModelLoadError`` when int8 was asked for and no layer has integer weights.
        """
        quantized, total = layers.get(Activations.INT8, 0), sum(layers.values())
        if not quantized:
            return Selection("activations", Activations.FLOAT.value, self._why_float())
        why = "auto: integer weights on a CPU, no dtype asked for"
        if self.asked != AUTO:
            why = "asked for"
        elif self.meant is Activations.INT8:
            why = "auto: the quantization that was asked for is meant so"
        return Selection(
            "activations", Activations.INT8.value, f"{quantized} of {total} linear layers, {why}"
        )

    def _why_float(self) -> str:
        if self.asked == Activations.INT8.value:
            raise ModelLoadError(
                "activations 'int8' was asked for, but no layer has integer weights that a kernel takes so; "
                "set activations to auto or float"
            )
        if self.asked != AUTO:
            return "asked for"
        return self._auto_against() or "no kernel in use multiplies int8 inputs by a layer's weights"

    def _auto_against(self) -> str:
        """Why ``auto`` quantizes no input; empty when it may."""
        if self.dtype != AUTO and self.meant is not Activations.INT8:
            return f"dtype {self.dtype} was asked for"
        if self.device.type != "cpu":
            return f"auto quantizes inputs on a CPU, not on {self.device.type}"
        return ""
