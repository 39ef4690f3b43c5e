"""Quantizing while loading: which layers a quantizer gets, which patterns except, and what comes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from functools import partial

import torch
from torch import Tensor

from hundredfold.plugin import (
    Activations,
    CanonicalWeight,
    CheckpointInfo,
    DenseWeight,
    FavouringKernel,
    LayerRequest,
    QuantizationPlugin,
    Quantizer,
    Reasons,
)
from hundredfold.plugin.dequantize import dequantize, fold_transform
from hundredfold.plugin.registry import PluginError, Registry
from hundredfold_worker.model.activations import AUTO
from hundredfold_worker.model.architectures import LayerNames, ParameterNames
from hundredfold_worker.model.architectures.names import HF_LAYER
from hundredfold_worker.model.errors import ModelLoadError
from hundredfold_worker.model.guards import Guard, check_weight
from hundredfold_worker.model.loaded import LoadOptions, Selection

GROUP = "hundredfold.quantizers"
HEAD = "lm_head"
FAST = "fast"
"""Stands for the quantizer whose weights a kernel favours, where there is one."""


@dataclass(frozen=True, slots=True)
class Favoured:
    """What ``fast`` stands for on a machine."""

    kernel: str
    quantizer: Quantizer
    form: type[CanonicalWeight]


@dataclass(slots=True)
class OnTheFly:
    """One quantizer over one checkpoint."""

    quantizer: Quantizer
    guard: Guard
    excepted: frozenset[str]
    """Parts that stay as the checkpoint has them, by the checkpoint's name or that of the common scheme."""
    aliases: Mapping[str, tuple[str, ...]]
    """A layer's name in the checkpoint to the common scheme's names of its parts."""
    why: str = "asked for"
    leaves: tuple[type[CanonicalWeight], ...] = ()
    """Forms that stay as the checkpoint has them."""
    refused: dict[str, list[str]] = field(default_factory=dict)
    quantized: int = 0
    dequantized: int = 0
    """How many of them were not dense."""

    @property
    def activations(self) -> Activations:
        """The recipe that quantized layers are meant for."""
        return self.quantizer.activations

    def excepts(self, name: str) -> tuple[bool, ...]:
        """For each part of a layer, whether it stays as it is."""
        return tuple(name in self.excepted or alias in self.excepted for alias in self.aliases[name])

    def convert(self, name: str, weight: CanonicalWeight) -> CanonicalWeight | None:
        """The layer quantized; ``None`` where it stays as it is. Raises ``ModelLoadError``."""
        if isinstance(weight, self.leaves):
            return None
        matrix = plain_matrix(weight)
        layer = LayerRequest(name, (matrix.shape[0], matrix.shape[1]))
        plugin = self.quantizer
        reasons = self.guard.call(plugin, f"refuses() of layer '{name}'", lambda: plugin.refuses(layer))
        if reasons:
            self.refused[name] = reasons
            return None
        what = f"quantize() of layer '{name}'"
        try:
            made = self.guard.call(
                plugin, what, lambda: plugin.quantize(layer, matrix), expected=(ValueError,)
            )
        except ValueError as error:
            raise ModelLoadError(f"quantization '{plugin.name}': {error}") from error
        self.quantized += 1
        self.dequantized += not isinstance(weight, DenseWeight)
        return check_weight(self.guard, plugin, what, layer, made)

    def selection(self, checkpoint_format: Selection) -> Selection:
        """What was done, once every layer is built. Raises ``ModelLoadError`` when it was nothing."""
        if not self.quantized and self.refused:
            name, reasons = next(iter(self.refused.items()))
            raise ModelLoadError(
                f"quantization '{self.quantizer.name}' refuses every layer; '{name}': {', '.join(reasons)}"
            )
        said = f"{self.why}; {self.quantized} linear layers quantized at load"
        if self.dequantized:
            said += f", {self.dequantized} of them from {checkpoint_format.chosen} weights dequantized first"
        if self.excepted:
            said += f"; excepted: {_some(sorted(self.excepted))}"
        if self.refused:
            name, reasons = next(iter(self.refused.items()))
            said += f"; refused: {_some(sorted(self.refused))} ({name}: {', '.join(reasons)})"
        return Selection("quantization", self.quantizer.name, said, checkpoint_format.refused)


def choose_on_the_fly(
    registries: Mapping[str, Registry],
    options: LoadOptions,
    info: CheckpointInfo,
    names: ParameterNames,
    device: torch.device,
) -> OnTheFly | None:
    """The quantizer that was asked for, or ``None`` when a format was. Raises ``ModelLoadError``.

    A name that both have means the format where the checkpoint is of it.
    """
    registry = registries[GROUP]
    asked = options.quantization
    if asked == FAST:
        return _favoured(registries, options, names, device)
    if asked not in registry.names() or _is_format(registries["hundredfold.quantization"], asked, info):
        if options.quantization_exclude:
            known = ", ".join(registry.names()) or "none is installed"
            raise ModelLoadError(
                f"quantization_exclude excepts layers from quantizing at load, but quantization '{asked}' "
                f"does not quantize at load; those that do: {known}"
            )
        return None
    try:
        quantizer = registry.get(asked)
    except PluginError as error:
        raise ModelLoadError(str(error)) from error
    guard = Guard(registry)
    ask = getattr(quantizer, "unavailable", None)
    lacking = [] if ask is None else guard.call(quantizer, "unavailable()", ask)
    if lacking:
        raise ModelLoadError(f"quantization '{asked}' cannot be used: {'; '.join(map(str, lacking))}")
    aliases = common_names(names)
    excepted = _matching(options.quantization_exclude, aliases)
    return OnTheFly(quantizer, guard, excepted, aliases)


def _favoured(
    registries: Mapping[str, Registry], options: LoadOptions, names: ParameterNames, device: torch.device
) -> OnTheFly | None:
    """What quantizes at load for ``fast``; ``None`` where nobody does."""
    found = favoured(registries, options.kernels, device, options.activations)
    aliases = common_names(names)
    if found is None:
        return None
    why = f"fast: kernel '{found.kernel}' favours {found.form.__name__} on this machine"
    excepted = _matching(options.quantization_exclude, aliases)
    return OnTheFly(found.quantizer, Guard(registries[GROUP]), excepted, aliases, why, (found.form,))


def favoured(
    registries: Mapping[str, Registry], kernels: Sequence[str], device: torch.device, activations: str
) -> Favoured | None:
    """The quantizer that makes what a kernel favours on this machine; ``None`` where there is none.

    ``kernels`` are those that were asked for, in their order; all when empty. Weights that are meant for
    other ``activations`` than were asked for are no favourites: they would become floats, with their loss.
    """
    for kernel, form in _favoured_forms(registries["hundredfold.kernels"], kernels, device):
        for _, quantizer in registries[GROUP].candidates():
            meant = activations in (AUTO, quantizer.activations.value)
            if meant and getattr(quantizer, "makes", None) is form:
                return Favoured(kernel, quantizer, form)
    return None


def _favoured_forms(
    registry: Registry, asked: Sequence[str], device: torch.device
) -> Iterator[tuple[str, type[CanonicalWeight]]]:
    """By name of the kernel that favours them, in the order in which kernels are asked."""
    guard = Guard(registry)
    for name, kernel in [(name, registry.get(name)) for name in asked] or registry.candidates():
        if isinstance(kernel, FavouringKernel):
            for form in guard.call(kernel, "favours()", partial(kernel.favours, device)):
                yield name, form


def _is_format(formats: Registry, name: str, info: CheckpointInfo) -> bool:
    """Whether the checkpoint is of the format that has this name."""
    if name not in formats.names():
        return False
    try:
        plugin = formats.get(name)
    except PluginError as error:
        raise ModelLoadError(str(error)) from error

    def ask(plugin: QuantizationPlugin) -> Reasons:
        return plugin.refuses(info)

    return not Guard(formats).asking(ask, asked_for=True)(plugin)


def common_names(names: ParameterNames) -> dict[str, tuple[str, ...]]:
    """Each linear layer's name in the checkpoint, with the names that transformers gives its parts."""
    found: dict[str, tuple[str, ...]] = {names.head: (HEAD,)}
    for index, layer in enumerate(names.layers):
        common = HF_LAYER.under(f"model.layers.{index}")
        for part in fields(LayerNames):
            own, usual = getattr(layer, part.name), getattr(common, part.name)
            if part.name in ("attention_output", "down"):
                found[own] = (usual,)
            elif isinstance(own, tuple):
                found.update({own[0]: usual} if len(own) == 1 else dict(zip(own, zip(usual), strict=True)))
    return found


def plain_matrix(weight: CanonicalWeight) -> Tensor:
    """The dense matrix [N, K] that a weight stands for, its input transform folded in."""
    kept = weight.weight.dtype if isinstance(weight, DenseWeight) else torch.float32
    return fold_transform(dequantize(weight, kept), weight.transform)


def _matching(patterns: Sequence[str], aliases: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    every = {name for own, parts in aliases.items() for name in (own, *parts)}
    found: set[str] = set()
    for pattern in patterns:
        matched = {name for name in every if fnmatchcase(name, pattern)}
        if not matched:
            some = next(iter(aliases))
            last = list(aliases.items())[-1]
            raise ModelLoadError(
                f"quantization_exclude: '{pattern}' matches no linear layer; they are called like '{some}' "
                f"and '{last[0]}' in this checkpoint, or '{HEAD}' and '{last[1][0]}'"
            )
        found |= matched
    return frozenset(found)


def _some(names: Sequence[str], most: int = 6) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
