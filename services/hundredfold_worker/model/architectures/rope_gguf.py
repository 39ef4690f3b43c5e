"""Rotary settings of GGUF metadata and tensors as a description."""

from __future__ import annotations

import math

from hundredfold.plugin import RotaryStyle
from hundredfold_worker.model.architectures.gguf_values import GgufSection
from hundredfold_worker.model.architectures.rope_config import DEFAULT_THETA, longrope_factor
from hundredfold_worker.model.architectures.shape import Shape
from hundredfold_worker.model.checkpoint import MappedTensors
from hundredfold_worker.model.description import (
    MAX_POSITIONS,
    DivisorScaling,
    LinearScaling,
    LongropeScaling,
    RotaryDescription,
    RotaryScaling,
    YarnScaling,
)
from hundredfold_worker.model.errors import ModelLoadError

DIVISORS, LONG, SHORT = (f"rope_{name}.weight" for name in ("freqs", "factors_long", "factors_short"))


def rotary_from_gguf(
    section: GgufSection, tensors: MappedTensors, shape: Shape, style: RotaryStyle = RotaryStyle.HALVES
) -> RotaryDescription:
    """Rotation of the layers that see everything. Raises ``ModelLoadError`` for an unknown scaling.

    Most converters leave rows as they are, so that halves rotate; Llama's reorders them into pairs.
    """
    dim = section.integer("rope.dimension_count", default=shape.head_dim, least=2, most=shape.head_dim)
    if dim % 2:
        raise section.wrong("rope.dimension_count", "even")
    theta = section.number("rope.freq_base", default=DEFAULT_THETA, above=1.0)
    scaling = _stated(section, shape)
    of_tensors = _of_tensors(section, tensors, shape, dim // 2)
    if scaling is not None and of_tensors is not None:
        raise section.wrong("rope.scaling.type", "none, because the file has rotary factors as tensors")
    return RotaryDescription(dim, theta, style, scaling or of_tensors)


def _stated(section: GgufSection, shape: Shape) -> RotaryScaling | None:
    factor = section.number("rope.scaling.factor", default=section.number("rope.scale_linear", default=1.0))
    match section.string("rope.scaling.type", default="none"):
        case "none":
            return LinearScaling(factor) if section.has("rope.scale_linear") else None
        case "linear":
            return LinearScaling(factor)
        case "yarn":
            stretch = 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0
            return YarnScaling(
                factor=factor,
                original_max_position=_original(section, shape),
                attention_factor=stretch * section.number("rope.scaling.attn_factor", default=1.0),
                beta_fast=section.number("rope.scaling.yarn_beta_fast", default=32.0),
                beta_slow=section.number("rope.scaling.yarn_beta_slow", default=1.0),
            )
        case "longrope":
            return None
        case _:
            raise section.wrong("rope.scaling.type", "one of none, linear, yarn, longrope")


def _of_tensors(
    section: GgufSection, tensors: MappedTensors, shape: Shape, count: int
) -> RotaryScaling | None:
    if tensors.shape(DIVISORS) is not None:
        return DivisorScaling(_factors(section, tensors, DIVISORS, count))
    present = [name for name in (LONG, SHORT) if tensors.shape(name) is not None]
    if not present:
        if section.string("rope.scaling.type", default="none") == "longrope":
            raise section.wrong("rope.scaling.type", f"another, because the file has no '{LONG}'")
        return None
    original = _original(section, shape)
    stated = longrope_factor(shape.max_position / original, original)
    return LongropeScaling(
        short=_factors(section, tensors, SHORT, count),
        long=_factors(section, tensors, LONG, count),
        original_max_position=original,
        attention_factor=section.number("rope.scaling.attn_factor", default=stated),
    )


def _original(section: GgufSection, shape: Shape) -> int:
    key = "rope.scaling.original_context_length"
    return section.integer(key, default=shape.max_position, most=MAX_POSITIONS)


def _factors(section: GgufSection, tensors: MappedTensors, name: str, count: int) -> tuple[float, ...]:
    if tensors.shape(name) is None:
        raise ModelLoadError(f"{section.path}: tensor '{name}' is missing")
    values = tensors.dense(name).float().flatten()
    if len(values) != count or not bool((values.isfinite() & (values > 0)).all()):
        raise ModelLoadError(
            f"{section.path}: '{name}' has {len(values)} numbers, expected are {count}, finite and above 0"
        )
    return tuple(values.tolist())
