"""Calls into plugins at load: what they raise or give back wrong is told with plugin and distribution."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Self, TypeVar

import torch

from hundredfold.plugin import (
    AttentionBatch,
    AttentionPlugin,
    AttentionSpec,
    CanonicalWeight,
    CheckpointInfo,
    Choice,
    DenseWeight,
    Encoding,
    KernelPlugin,
    KVCacheSpec,
    LayerRequest,
    Linear,
    LinearSpec,
    QuantizationMethod,
    QuantizationPlugin,
    Reasons,
    TensorSource,
)
from hundredfold.plugin.registry import Registry
from hundredfold.telemetry import get_logger
from hundredfold_worker.model.errors import ModelLoadError

log = get_logger(__name__)

T = TypeVar("T")

OUT_OF_MEMORY: tuple[type[Exception], ...] = (MemoryError, torch.OutOfMemoryError)
"""No fault of a plugin."""
TRIED_ROWS = (1, 2)
"""Rows of the products by which a layer is tried: a result of one row would pass unseen where one is due."""


class Guard:
    """Calls into the plugins of one registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def fault(self, plugin: Any, reason: str, raised: Exception | None = None) -> ModelLoadError:
        """What a plugin did wrong, with its distribution and the traceback of what its code raised."""
        trace = "" if raised is None else "".join(traceback.format_exception(raised))
        error = self._registry.fault(plugin.name, reason, trace)
        error.__cause__ = raised
        failure = ModelLoadError(str(error))
        failure.__cause__ = error
        return failure

    def call(
        self,
        plugin: Any,
        what: str,
        function: Callable[[], T],
        *,
        expected: tuple[type[Exception], ...] = (),
    ) -> T:
        """The function's result. Raises ``expected`` errors as they are, others as ``ModelLoadError``."""
        try:
            return function()
        except (*OUT_OF_MEMORY, *expected):
            raise
        except Exception as error:
            raise self.fault(plugin, f"{what} raised {type(error).__name__}: {error}", error)  # noqa: B904

    def asking(self, *asks: Callable[[T], Reasons], asked_for: bool) -> Callable[[T], Reasons]:
        """All of ``asks`` as one for ``choose``, each reason once.

        Who cannot answer is refused; who was asked for by name ends the start.
        """

        def careful(plugin: T) -> Reasons:
            try:
                return list(dict.fromkeys(reason for ask in asks for reason in self._reasons(plugin, ask)))
            except ModelLoadError as error:
                if asked_for:
                    raise
                log.warning("plugin left out", reason=str(error))
                return [str(error).splitlines()[0]]

        return careful

    def _reasons(self, plugin: T, ask: Callable[[T], Reasons]) -> Reasons:
        reasons = self.call(plugin, "refuses()", lambda: ask(plugin))
        if not (isinstance(reasons, list) and all(isinstance(reason, str) for reason in reasons)):
            raise self.fault(plugin, f"refuses() returned {reasons!r}, wanted is a list of texts")
        return reasons

    def prepare(self, kernel: KernelPlugin, spec: LinearSpec, bias: torch.Tensor | None) -> Linear:
        """A kernel's layer, tried with few rows. Raises ``ModelLoadError``."""
        what = f"for layer '{spec.name}' prepare()"
        linear = self.call(kernel, what, lambda: kernel.prepare(spec, bias))
        features, columns = spec.shape
        for rows in TRIED_ROWS:
            x = torch.ones(rows, columns, dtype=spec.dtype, device=spec.device)
            with torch.inference_mode():
                y = self.call(kernel, f"layer '{spec.name}' with {rows} rows", partial(linear, x))
            self._like(kernel, f"layer '{spec.name}' with {rows} rows", y, (rows, features), spec.dtype)
        return linear

    def try_attention(
        self,
        backend: AttentionPlugin,
        layers: Iterable[AttentionSpec],
        cache: KVCacheSpec,
        encoding: Encoding,
    ) -> None:
        """Attend to two tokens in a cache of one block, once for each layer. Raises ``ModelLoadError``."""
        tokens, device = 2, cache.device
        batch = AttentionBatch(
            query_lens=[tokens],
            seq_lens=[tokens],
            block_tables=torch.zeros(1, 1, dtype=torch.int32, device=device),
            slot_mapping=torch.arange(tokens, device=device),
            positions=torch.arange(tokens, device=device),
        )
        for layer in layers:

            def attend(layer: AttentionSpec = layer) -> torch.Tensor:
                own = backend.allocate(cache, encoding, 1)
                q, k, v = (
                    torch.zeros(tokens, heads, layer.head_dim, dtype=cache.dtype, device=device)
                    for heads in (layer.num_heads, layer.num_kv_heads, layer.num_kv_heads)
                )
                return backend.plan(batch, cache, encoding)(layer, own, q, k, v)

            with torch.inference_mode():
                out = self.call(backend, "attention over two tokens", attend)
            width = layer.num_heads * layer.head_dim
            self._like(backend, "attention over two tokens", out, (tokens, width), cache.dtype)

    def _like(self, plugin: Any, what: str, got: object, shape: tuple[int, int], dtype: torch.dtype) -> None:
        if not isinstance(got, torch.Tensor):
            raise self.fault(plugin, f"{what} gave {type(got).__name__}, wanted is a tensor")
        if tuple(got.shape) != shape or got.dtype != dtype:
            found = f"{got.dtype}{list(got.shape)}"
            raise self.fault(plugin, f"{what} gave {found}, wanted is {dtype}{list(shape)}")


class GuardedMethod:
    """A quantization method whose answers are checked; faults that are no ``ValueError`` are the plugin's."""

    def __init__(self, guard: Guard, plugin: Any, method: QuantizationMethod) -> None:
        self._guard = guard
        self._plugin = plugin
        self._method = method

    def covers(self, layer: LayerRequest) -> bool:
        """See ``QuantizationMethod``."""
        return self._guard.call(
            self._plugin, f"covers() of layer '{layer.name}'", lambda: self._method.covers(layer)
        )

    def load(self, layer: LayerRequest, tensors: TensorSource) -> CanonicalWeight:
        """See ``QuantizationMethod``."""
        what = f"load() of layer '{layer.name}'"
        weight = self._guard.call(
            self._plugin,
            what,
            lambda: self._method.load(layer, tensors),
            expected=(ValueError, KeyError),
        )
        return check_weight(self._guard, self._plugin, what, layer, weight)

    @classmethod
    def of(cls, guard: Guard, choice: Choice[QuantizationPlugin], checkpoint: CheckpointInfo) -> Self:
        """The chosen format, bound to a checkpoint. Raises ``ValueError`` naming the key at fault."""
        plugin = choice.value
        method = guard.call(plugin, "bind()", lambda: plugin.bind(checkpoint), expected=(ValueError,))
        return cls(guard, plugin, method)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the method has to tell, empty when it has nothing to."""
        said = self._guard.call(self._plugin, "remarks", lambda: getattr(self._method, "remarks", ()))
        if not (isinstance(said, tuple) and all(isinstance(remark, str) for remark in said)):
            raise self._guard.fault(self._plugin, f"remarks are {said!r}, wanted is a tuple of texts")
        return said


def check_weight(
    guard: Guard, plugin: Any, what: str, layer: LayerRequest, weight: object
) -> CanonicalWeight:
    """A weight that a plugin gave for a layer. Raises ``ModelLoadError`` when it is none, or misshapen."""
    if not isinstance(weight, CanonicalWeight):
        raise guard.fault(plugin, f"{what} gave {type(weight).__name__}, which is no canonical weight")
    matrix = weight.weight if isinstance(weight, DenseWeight) else weight.codes
    if tuple(matrix.shape) != layer.shape:
        raise guard.fault(
            plugin, f"{what} gave a weight of {list(matrix.shape)}, wanted is {list(layer.shape)}"
        )
    for name, part in _few_numbers(weight):
        if part.is_floating_point() and not bool(part.float().isfinite().all()):
            raise guard.fault(plugin, f"{what} gave {name} that are not finite")
    return weight


def _few_numbers(weight: CanonicalWeight) -> Iterator[tuple[str, torch.Tensor]]:
    """What many of a weight's numbers depend on: with one that is not finite, each answer is garbage."""
    for holder in (weight, weight.transform):
        for name in ("scales", "zeros", "codebook", "factor"):
            part = getattr(holder, name, None)
            if isinstance(part, torch.Tensor):
                yield name, part
