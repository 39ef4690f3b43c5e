"""Bytes that weights and cache take in the memory of a worker: what the kernels make of each form.

Held to what a worker reports by a test over every form that can be loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hundredfold.errors import StartError
from hundredfold.plugin import (
    CanonicalWeight,
    ChannelInt8Weight,
    Encoding,
    GroupedIntWeight,
    KVCachePlugin,
    LayerRole,
    WeightForm,
    Zero,
)
from hundredfold.plugin.registry import PluginError, Registry
from hundredfold_worker.estimate.parts import AttentionCache, Outline, Part

SIZES = {"fp32": 4, "bf16": 2, "fp16": 2}
_PANEL = 16
"""Output features that the CPU's kernels keep together; the last panel is filled up."""
_BAND = 32
"""Columns of an int4 cache that share a scale."""
_LANES = 16
"""Columns to which the CPU's attention fills up a value."""


@dataclass(frozen=True, slots=True)
class CacheForm:
    """A cache encoding."""

    bits: int
    """Of a number."""
    scale_bytes: int = 0
    """Of a token's head, keys and values each."""
    band_bytes: int = 0
    """The same for every 32 columns."""


CACHE: Mapping[Encoding, CacheForm] = {
    Encoding.FP32: CacheForm(32),
    Encoding.BF16: CacheForm(16),
    Encoding.INT8: CacheForm(8, 4),
    Encoding.FP8: CacheForm(8, 4),
    Encoding.FP8_E5M2: CacheForm(8, 4),
    Encoding.INT4: CacheForm(4, band_bytes=4),
}

CacheBytes = Callable[[AttentionCache, Encoding], int]
"""Bytes of a token in one layer."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a device's kernels keep things."""

    device: str
    dtype: str
    keeps_groups: bool
    """Whether grouped integers stay integers, or become floats of the compute type."""
    keeps_channels: bool
    """The same for int8 by output channel, which only int8 inputs are multiplied by."""
    attention: CacheBytes | None = None
    """What attention that was named keeps; ``None`` for the usual."""

    @property
    def kept(self) -> tuple[type[CanonicalWeight], ...]:
        """Forms that stay integers."""
        return (*(GroupedIntWeight,) * self.keeps_groups, *(ChannelInt8Weight,) * self.keeps_channels)

    def keeps(self, form: WeightForm) -> bool:
        """Whether a form stays as integers."""
        return form.makes in self.kept

    def part(self, part: Part, form: WeightForm, tied: bool) -> int:
        """Bytes of a matrix, all copies; ``tied``: an output layer that is the embedding."""
        if part.role is LayerRole.TABLE:
            return self._table(part, form)
        if self.keeps(form) and form.makes is GroupedIntWeight:
            return self._grouped(part, form) * part.copies
        if self.keeps(form):
            return _up(part.rows, _PANEL) * (_up(part.columns, 4) + 8) * part.copies
        if tied and part.role is LayerRole.HEAD and self.device != "cpu":
            return 0  # the same tensor; a CPU's kernel arranges one of its own
        rows = _up(part.rows, _PANEL) if self.device == "cpu" and self.dtype == "fp32" else part.rows
        return rows * part.columns * SIZES[self.dtype] * part.copies

    def _grouped(self, part: Part, form: WeightForm) -> int:
        bits = 4 if form.bits <= 4 else 8
        group = form.group_size or part.columns
        whole, rest = divmod(part.columns, group)
        columns = whole * _up(group, 4) + _up(rest, 4)
        groups = -(-part.columns // group)
        return _up(part.rows, _PANEL) * (columns * bits // 8 + groups * _per_group(form))

    def _table(self, part: Part, form: WeightForm) -> int:
        if form.makes is GroupedIntWeight:
            groups = part.rows * -(-part.columns // (form.group_size or part.columns))
            return part.count + groups * _per_group(form)
        if form.makes is ChannelInt8Weight:
            return part.count + 4 * part.rows
        return part.count * SIZES[self.dtype]

    def cache(self, layer: AttentionCache, encoding: Encoding) -> int:
        """Bytes of a token in one layer."""
        if self.attention is not None:
            return self.attention(layer, encoding)
        form = CACHE[encoding]
        key, value = layer.key_size, layer.value_size
        scales = 2 * form.scale_bytes + form.band_bytes * (-(-key // _BAND) - (-value // _BAND))
        in_byte = 2 if form.bits == 4 else 1
        if self.device == "cpu":
            key, value = _up(key, 2 * in_byte), _up(value, _LANES)
        else:
            key, value = _up(key, in_byte), _up(value, in_byte)
        return layer.heads * ((key + value) * form.bits // 8 + scales)


def _per_group(form: WeightForm) -> int:
    """Bytes of a group's scale and offset, both float32 where one is: a scale times a zero point is."""
    half = form.half_scales and form.zero is not Zero.POINT
    return (2 if half else 4) * (1 if form.zero is None else 2)


def layout(
    device: str,
    dtype: str,
    activations: str,
    dtype_asked: bool,
    meant_int8: bool,
    attention: CacheBytes | None = None,
) -> Layout:
    """The kernels that a worker would take; ``meant_int8``: a quantizer that means its weights for int8."""
    floats = activations == "float" or (activations == "auto" and dtype_asked and not meant_int8)
    on_cpu = device == "cpu"
    groups, channels = on_cpu and (dtype == "fp32" or not floats), on_cpu and not floats
    return Layout(device, dtype, groups, channels, attention)


def encoding_of(asked: str, dtype: str) -> Encoding:
    """The cache encoding in force: that of the plugin. Raises ``StartError`` when there is none."""
    if asked == "auto":
        return Encoding.FP32 if dtype == "fp32" else Encoding.BF16
    try:
        plugin: KVCachePlugin = Registry("hundredfold.kv_cache").get(asked)
    except PluginError as error:
        raise StartError(f"kv_cache_dtype: {error}") from error
    return plugin.encoding


def token_bytes(outline: Outline, kept: Layout, encoding: Encoding) -> int:
    """Bytes of a token in all layers."""
    return sum(kept.cache(layer, encoding) for layer in outline.caches)


def angle_bytes(outline: Outline, max_model_len: int) -> int:
    """Bytes of the tables of angles."""
    return outline.rotated * 4 * max_model_len


def _up(count: int, step: int) -> int:
    return -(-count // step) * step
