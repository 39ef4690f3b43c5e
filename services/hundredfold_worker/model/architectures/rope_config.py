"""Rotary settings of config.json, in the spelling of any year, as a description."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from hundredfold_worker.model.architectures.shape import Shape
from hundredfold_worker.model.checkpoint import ConfigJson
from hundredfold_worker.model.description import (
    MAX_POSITIONS,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongropeScaling,
    RotaryDescription,
    RotaryScaling,
    YarnScaling,
)

DEFAULT_THETA = 10_000.0
KINDS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
_NOTHING: Mapping[str, str] = MappingProxyType({})


def rotary_from_config(
    config: ConfigJson, shape: Shape, *, also_called: Mapping[str, str] = _NOTHING
) -> RotaryDescription:
    """Read ``rope_parameters`` (transformers 5), or ``rope_theta`` with ``rope_scaling`` (before).

    The kind may be called ``rope_type`` or ``type``; ``also_called`` maps an architecture's own words to the
    usual ones. Raises ``ModelLoadError`` for an unknown kind.
    """
    section = config.section("rope_parameters") or config.section("rope_scaling")
    theta = config.number("rope_theta", default=DEFAULT_THETA, above=1.0)
    return rotary_of(config, section, shape, theta, also_called)


def rotary_of(
    config: ConfigJson,
    section: ConfigJson | None,
    shape: Shape,
    theta: float,
    also_called: Mapping[str, str] = _NOTHING,
) -> RotaryDescription:
    """One section's settings; ``theta`` where it has none."""
    share_of, scaling = config, None
    if section is not None:
        nested = next((key for key, value in section.values.items() if isinstance(value, dict)), None)
        if nested is not None:
            raise section.wrong(nested, "no object: settings by kind of layer are not for this architecture")
        theta = section.number("rope_theta", default=theta, above=1.0)
        share_of = section if section.has("partial_rotary_factor") else config
    share = share_of.number("partial_rotary_factor", default=1.0)
    dim = int(shape.head_dim * share)
    if dim < 2 or dim % 2 or dim > shape.head_dim:
        wanted = f"such that an even part of head_dim {shape.head_dim} rotates"
        raise share_of.wrong("partial_rotary_factor", wanted)
    if section is not None:
        scaling = _scaling(config, section, shape, dim, also_called)
    return RotaryDescription(dim=dim, theta=theta, scaling=scaling)


def _scaling(
    config: ConfigJson, section: ConfigJson, shape: Shape, dim: int, also_called: Mapping[str, str]
) -> RotaryScaling | None:
    key = "rope_type" if section.has("rope_type") else "type"
    kind = section.string(key, default="default")
    match also_called.get(kind, kind):
        case "default":
            return None
        case "linear":
            return LinearScaling(section.number("factor"))
        case "dynamic":
            if dim < 4:
                raise section.wrong(key, f"another kind: dynamic needs 4 rotating columns, here are {dim}")
            return DynamicScaling(section.number("factor", above=1 - 1e-9), shape.max_position)
        case "yarn":
            return _yarn(section, _original(config, section, shape), shape)
        case "longrope":
            return _longrope(section, _original(config, section, shape), shape, dim // 2)
        case "llama3":
            low, high = section.number("low_freq_factor"), section.number("high_freq_factor")
            if high <= low:
                raise section.wrong("high_freq_factor", f"above low_freq_factor, {low:g}")
            return Llama3Scaling(section.number("factor"), low, high, _original(config, section, shape))
        case _:
            raise section.wrong(key, f"one of {', '.join((*KINDS, *also_called))}")


def _original(config: ConfigJson, section: ConfigJson, shape: Shape) -> int:
    """Positions before stretching; some architectures say so beside the section, and that wins."""
    key = "original_max_position_embeddings"
    stated = config if config.has(key) else section
    return stated.integer(key, default=shape.max_position, most=MAX_POSITIONS)


def _yarn(section: ConfigJson, original: int, shape: Shape) -> YarnScaling:
    factor = section.number("factor", default=shape.max_position / original)
    slow, fast = section.number("beta_slow", default=1.0), section.number("beta_fast", default=32.0)
    if fast <= slow:
        raise section.wrong("beta_fast", f"above beta_slow, {slow:g}")
    if section.has("attention_factor"):
        attention_factor = section.number("attention_factor")
    elif section.has("mscale") and section.has("mscale_all_dim"):
        over, under = section.number("mscale"), section.number("mscale_all_dim")
        attention_factor = _mscale(factor, over) / _mscale(factor, under)
    else:
        attention_factor = _mscale(factor)
    return YarnScaling(
        factor, original, attention_factor, fast, slow, section.boolean("truncate", default=True)
    )


def _mscale(factor: float, weight: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _longrope(section: ConfigJson, original: int, shape: Shape, count: int) -> LongropeScaling:
    factor = section.number("factor", default=shape.max_position / original)
    return LongropeScaling(
        short=section.numbers("short_factor", count),
        long=section.numbers("long_factor", count),
        original_max_position=original,
        attention_factor=section.number("attention_factor", default=longrope_factor(factor, original)),
    )


def longrope_factor(factor: float, original: int) -> float:
    """What multiplies cosines and sines of a model stretched by ``factor`` from ``original`` positions."""
    if factor <= 1.0 or original < 2:
        return 1.0
    return math.sqrt(1 + math.log(factor) / math.log(original))
