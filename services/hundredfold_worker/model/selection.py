"""Asks plugins what they can do and takes the first without a reason against it; every answer is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from hundredfold.plugin import (
    Activations,
    ApproximateAttention,
    AttentionPlugin,
    AttentionSpec,
    CanonicalWeight,
    CheckpointInfo,
    Choice,
    Elementwise,
    ElementwisePlugin,
    ElementwiseSpec,
    Encoding,
    KernelPlugin,
    KVCachePlugin,
    KVCacheSpec,
    Linear,
    LinearSpec,
    NothingFits,
    QuantizationPlugin,
    Reasons,
    Refused,
    ScalePolicy,
    choose,
    kernel_reasons,
    variance_reasons,
)
from hundredfold.plugin.conformance import faults
from hundredfold.plugin.registry import PluginError, Registry
from hundredfold_worker.model.activations import ActivationsPolicy
from hundredfold_worker.model.canonical import to_device
from hundredfold_worker.model.errors import ModelLoadError
from hundredfold_worker.model.formats import InstalledFormats
from hundredfold_worker.model.guards import Guard, GuardedMethod
from hundredfold_worker.model.loaded import Selection

AUTO = "auto"
T = TypeVar("T")

PREFERRED_ENCODING = {
    torch.float32: Encoding.FP32,
    torch.bfloat16: Encoding.BF16,
    torch.float16: Encoding.BF16,
}
"""The encoding that loses nothing, or least, of what a model computes in; ``auto`` takes no other."""


def choose_quantization(
    registries: Mapping[str, Registry], info: CheckpointInfo, asked: str
) -> tuple[GuardedMethod, Selection]:
    """The checkpoint's own format decides. Raises ``ModelLoadError``."""

    registry = registries["hundredfold.quantization"]
    info = replace(info, formats=InstalledFormats(registry))

    def ask(plugin: QuantizationPlugin) -> Reasons:
        return plugin.refuses(info)

    try:
        choice = _choose("quantization", registry, asked, ask)
    except ModelLoadError as error:
        named = (info.quantization_config or {}).get("quant_method")
        if asked != AUTO or named is None:
            raise
        told = f"the checkpoint is quantized with {str(named)[:80]}, which nothing installed reads"
        raise ModelLoadError(f"{told}: {error}") from error.__cause__  # first: logs cut what is long
    try:
        method = GuardedMethod.of(Guard(registry), choice, info)
    except ValueError as error:
        raise ModelLoadError(f"quantization '{choice.name}': {error}") from error
    return method, _selection("quantization", choice)


def with_remarks(selection: Selection, method: GuardedMethod) -> Selection:
    """The choice of a format with what the format has to tell, once every layer is loaded."""
    return replace(selection, reason="; ".join((selection.reason, *method.remarks)))


def choose_kv_cache(
    registries: Mapping[str, Registry], spec: KVCacheSpec, asked: str
) -> tuple[Encoding, Selection]:
    """``auto`` is the plain encoding of the compute type. Raises ``ModelLoadError``."""
    preferred = PREFERRED_ENCODING[spec.dtype]

    def ask(plugin: KVCachePlugin) -> Reasons:
        reasons = plugin.refuses(spec)
        if asked == AUTO and (plugin.encoding is not preferred or plugin.scales is not ScalePolicy.NONE):
            reasons = [*reasons, f"auto takes unscaled {preferred.value} for a model that computes so"]
        return reasons

    choice: Choice[KVCachePlugin] = _choose("kv_cache", registries["hundredfold.kv_cache"], asked, ask)
    return choice.value.encoding, _selection("kv_cache", choice)


def choose_attention(
    registries: Mapping[str, Registry],
    layers: Sequence[AttentionSpec],
    spec: KVCacheSpec,
    encoding: Encoding,
    asked: str,
    options: Mapping[str, str] | None = None,
    *,
    batch_invariant: bool = False,
) -> tuple[AttentionPlugin, Selection]:
    """One backend for all layers, told ``options``. Raises ``ModelLoadError``."""

    def exact(plugin: AttentionPlugin) -> Reasons:
        approximate = asked == AUTO and isinstance(plugin, ApproximateAttention)
        return ["leaves keys out: only when it is asked for"] if approximate else []

    asks = [lambda plugin, layer=layer: plugin.refuses(layer, spec, encoding) for layer in layers]
    if batch_invariant:
        asks += [
            lambda plugin, layer=layer: variance_reasons(plugin, layer, spec, encoding) for layer in layers
        ]
    registry = registries["hundredfold.attention"]
    guard = Guard(registry)
    choice: Choice[AttentionPlugin] = _choose("attention", registry, asked, exact, *asks)
    backend, selection = choice.value, _selection("attention", choice)
    if options:
        backend = _told(guard, choice, options)
        if reasons := guard.asking(*asks, asked_for=True)(backend):
            raise ModelLoadError(f"attention '{choice.name}' with attention_options: {', '.join(reasons)}")
    if (approximate := _approximate(guard, backend)) is not None:
        left_out = guard.call(backend, "approximation", lambda: str(approximate.approximation))
        selection = replace(selection, reason=f"{selection.reason}; {left_out}")
    guard.try_attention(backend, layers, spec, encoding)
    return backend, selection


def _approximate(guard: Guard, plugin: AttentionPlugin) -> ApproximateAttention | None:
    """``plugin`` where it leaves something out; to look for its property is to run it."""

    def look() -> ApproximateAttention | None:
        return plugin if isinstance(plugin, ApproximateAttention) else None

    return guard.call(plugin, "approximation", look)


def _told(guard: Guard, choice: Choice[AttentionPlugin], options: Mapping[str, str]) -> AttentionPlugin:
    approximate = _approximate(guard, choice.value)
    if approximate is None:
        raise ModelLoadError(
            f"attention_options names {', '.join(options)}, and attention '{choice.name}' takes no options"
        )
    try:
        told = guard.call(choice.value, "told()", lambda: approximate.told(options), expected=(ValueError,))
    except ValueError as error:
        raise ModelLoadError(f"attention '{choice.name}': attention_options: {error}") from error
    missing = guard.call(choice.value, "told()", lambda: faults("hundredfold.attention", choice.name, told))
    if missing:
        raise guard.fault(choice.value, f"told() gave {type(told).__name__}, which {'; it '.join(missing)}")
    return told


def choose_elementwise(
    registries: Mapping[str, Registry], spec: ElementwiseSpec
) -> tuple[Elementwise, Selection]:
    """One plugin for the whole model. Raises ``ModelLoadError``."""

    def ask(plugin: ElementwisePlugin) -> Reasons:
        return plugin.refuses(spec)

    choice: Choice[ElementwisePlugin] = _choose(
        "elementwise", registries["hundredfold.elementwise"], AUTO, ask
    )
    guard = Guard(registries["hundredfold.elementwise"])
    operations = guard.call(choice.value, "bind()", lambda: choice.value.bind(spec))
    return operations, _selection("elementwise", choice)


class KernelChooser:
    """Asks for each linear layer anew, so that layers of different formats get different kernels."""

    def __init__(
        self,
        registries: Mapping[str, Registry],
        asked: Sequence[str],
        device: torch.device,
        dtype: torch.dtype,
        activations: ActivationsPolicy,
        *,
        batch_invariant: bool = False,
    ) -> None:
        registry = registries["hundredfold.kernels"]
        self._candidates: list[tuple[str, KernelPlugin]] = (
            [(name, _get(registry, name)) for name in asked] if asked else registry.candidates()
        )
        self._guard = Guard(registry)
        self._asked_for = bool(asked)
        self._why = "asked for" if asked else "first that fits"
        self._device = device
        self._dtype = dtype
        self._activations = activations
        self._batch_invariant = batch_invariant
        self._layers: Counter[tuple[str, str]] = Counter()
        self._recipes: Counter[Activations] = Counter()
        self._refused: dict[tuple[str, str], dict[Refused, None]] = {}

    def prepare(self, name: str, weight: CanonicalWeight, bias: Tensor | None) -> Linear:
        """The layer, ready to run. Raises ``ModelLoadError`` when no kernel takes it."""
        weight = to_device(weight, self._device)
        # A kernel is asked for every recipe that the layer may have before the next one is.
        candidates = [
            (kernel_name, (kernel, self._spec(name, weight, recipe)))
            for kernel_name, kernel in self._candidates
            for recipe in self._activations.recipes(weight)
        ]
        try:
            choice = choose(f"kernel for layer '{name}'", candidates, self._ask)
        except NothingFits as error:
            raise ModelLoadError(str(error)) from error
        kernel, spec = choice.value
        bias = None if bias is None else bias.to(self._device, self._dtype)
        linear = self._guard.prepare(kernel, spec, bias)
        kind = (choice.name, linear.recipe)
        self._layers[kind] += 1
        self._recipes[spec.activations] += 1
        self._refused.setdefault(kind, {}).update(dict.fromkeys(choice.refused))
        return linear

    def _spec(self, name: str, weight: CanonicalWeight, recipe: Activations) -> LinearSpec:
        return LinearSpec(name, weight, self._device, self._dtype, recipe, self._batch_invariant)

    def _ask(self, candidate: tuple[KernelPlugin, LinearSpec]) -> Reasons:
        kernel, spec = candidate
        asking: Callable[[KernelPlugin], Reasons] = self._guard.asking(
            lambda kernel: kernel_reasons(kernel, spec), asked_for=self._asked_for
        )
        return asking(kernel)

    def selections(self) -> list[Selection]:
        """How inputs are multiplied; what was taken for how many layers, most first."""
        invariant = Selection(
            "batch_invariant", "on", "asked for: no row's bits depend on the rows beside it"
        )
        chosen = [self._activations.selection(self._recipes), *self._kernels()]
        return [*chosen, invariant] if self._batch_invariant else chosen

    def _kernels(self) -> list[Selection]:
        total = self._layers.total()
        return [
            Selection(
                "kernels",
                name,
                f"{count} of {total} linear layers, {self._why}: {recipe}",
                tuple(self._refused[name, recipe]),
            )
            for (name, recipe), count in self._layers.most_common()
        ]


def _choose(subject: str, registry: Registry, asked: str, *asks: Callable[[T], Reasons]) -> Choice[T]:
    wanted = None if asked == AUTO else asked
    candidates = registry.candidates() if wanted is None else [(wanted, _get(registry, wanted))]
    try:
        return choose(
            subject, candidates, Guard(registry).asking(*asks, asked_for=wanted is not None), wanted
        )
    except NothingFits as error:
        raise ModelLoadError(str(error)) from error


def _get(registry: Registry, name: str) -> Any:
    try:
        return registry.get(name)
    except PluginError as error:
        raise ModelLoadError(str(error)) from error


def _selection(subject: str, choice: Choice[T]) -> Selection:
    return Selection(subject, choice.name, choice.reason, choice.refused)
