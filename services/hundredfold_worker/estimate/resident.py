"""Bytes that weights and cache take in the memory of a worker: what the kernels make of each form.

Held to what a worker reports by a test over every form that can be loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hundredfold.errors import StartError
from hundredfold_worker.estimate.forms import Form, Kind
from hundredfold_worker.estimate.parts import AttentionCache, Outline, Part, Role

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


CACHE: Mapping[str, CacheForm] = {
    "fp32": CacheForm(32),
    "bf16": CacheForm(16),
    "int8": CacheForm(8, 4),
    "fp8": CacheForm(8, 4),
    "fp8_e5m2": CacheForm(8, 4),
    "int4": CacheForm(4, band_bytes=4),
}
"""By the name of the cache plugin."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a device's kernels keep things."""

    device: str
    dtype: str
    keeps_groups: bool
    """Whether grouped integers stay integers, or become floats of the compute type."""
    keeps_channels: bool
    """The same for int8 by output channel, which only int8 inputs are multiplied by."""

    def keeps(self, form: Form) -> bool:
        """Whether a form stays as integers."""
        return (form.kind is Kind.GROUPED and self.keeps_groups) or (
            form.kind is Kind.CHANNEL and self.keeps_channels
        )

    def part(self, part: Part, form: Form, tied: bool) -> int:
        """Bytes of a matrix, all copies; ``tied``: an output layer that is the embedding."""
        if part.role is Role.EMBEDDING:
            return self._table(part, form)
        if form.kind is Kind.GROUPED and self.keeps_groups:
            return self._grouped(part, form) * part.copies
        if form.kind is Kind.CHANNEL and self.keeps_channels:
            return _up(part.rows, _PANEL) * (_up(part.columns, 4) + 8) * part.copies
        if tied and part.role is Role.HEAD and self.device != "cpu":
            return 0  # the same tensor; a CPU's kernel arranges one of its own
        rows = _up(part.rows, _PANEL) if self.device == "cpu" and self.dtype == "fp32" else part.rows
        return rows * part.columns * SIZES[self.dtype] * part.copies

    def _grouped(self, part: Part, form: Form) -> int:
        bits = 4 if form.bits <= 4 else 8
        group = part.columns if form.group is None else form.group
        whole, rest = divmod(part.columns, group)
        columns = whole * _up(group, 4) + _up(rest, 4)
        per_group = (2 if form.halves else 4) * (2 if form.offsets else 1)
        groups = -(-part.columns // group)
        return _up(part.rows, _PANEL) * (columns * bits // 8 + groups * per_group)

    def _table(self, part: Part, form: Form) -> int:
        if form.kind is Kind.GROUPED:
            return part.count + form.groups(part) * (2 if form.halves else 4) * (2 if form.offsets else 1)
        if form.kind is Kind.CHANNEL:
            return part.count + 4 * part.rows
        return part.count * SIZES[self.dtype]

    def cache(self, layer: AttentionCache, encoding: str) -> int:
        """Bytes of a token in one layer."""
        form = CACHE[encoding]
        key, value = layer.key_size, layer.value_size
        scales = 2 * form.scale_bytes + form.band_bytes * (-(-key // _BAND) - (-value // _BAND))
        in_byte = 2 if form.bits == 4 else 1
        if self.device == "cpu":
            key, value = _up(key, 2 * in_byte), _up(value, _LANES)
        else:
            key, value = _up(key, in_byte), _up(value, in_byte)
        return layer.heads * ((key + value) * form.bits // 8 + scales)


def layout(device: str, dtype: str, activations: str, dtype_asked: bool, meant_int8: bool) -> Layout:
    """The kernels that a worker would take; ``meant_int8``: a quantizer that means its weights for int8."""
    floats = activations == "float" or (activations == "auto" and dtype_asked and not meant_int8)
    on_cpu = device == "cpu"
    return Layout(device, dtype, on_cpu and (dtype == "fp32" or not floats), on_cpu and not floats)


def encoding_of(asked: str, dtype: str) -> str:
    """The cache encoding in force. Raises ``StartError`` for an unknown one."""
    if asked == "auto":
        return "fp32" if dtype == "fp32" else "bf16"
    if asked not in CACHE:
        raise StartError(f"kv_cache_dtype {asked!r} is not known here; known are auto, {', '.join(CACHE)}")
    return asked


def token_bytes(outline: Outline, kept: Layout, encoding: str) -> int:
    """Bytes of a token in all layers."""
    return sum(kept.cache(layer, encoding) for layer in outline.caches)


def angle_bytes(outline: Outline, max_model_len: int) -> int:
    """Bytes of the tables of angles."""
    return outline.rotated * 4 * max_model_len


def _up(count: int, step: int) -> int:
    return -(-count // step) * step
