"""Rotary settings of config.json, in the spelling of any year, as a description."""

from __future__ import annotations

from hundredfold_worker.model.checkpoint import ConfigJson
from hundredfold_worker.model.description import (
    MAX_POSITIONS,
    LinearScaling,
    Llama3Scaling,
    RotaryDescription,
    RotaryScaling,
)

DEFAULT_THETA = 10_000.0


def rotary_from_config(config: ConfigJson, head_dim: int, max_position: int) -> RotaryDescription:
    """Read ``rope_parameters`` (transformers 5), or ``rope_theta`` with ``rope_scaling`` (before).

    The kind may be called ``rope_type`` or ``type``. Raises ``ModelLoadError`` for an unknown kind.
    """
    section = config.section("rope_parameters") or config.section("rope_scaling")
    theta = config.number("rope_theta", default=DEFAULT_THETA)
    share = config.number("partial_rotary_factor", default=1.0)
    scaling: RotaryScaling | None = None
    if section is not None:
        theta = section.number("rope_theta", default=theta)
        share = section.number("partial_rotary_factor", default=share)
        scaling = _scaling(section, max_position)
    dim = int(head_dim * share)
    if dim < 2 or dim % 2 or dim > head_dim:
        raise config.wrong("partial_rotary_factor", f"such that an even part of head_dim {head_dim} rotates")
    return RotaryDescription(dim=dim, theta=theta, scaling=scaling)


def _scaling(section: ConfigJson, max_position: int) -> RotaryScaling | None:
    key = "rope_type" if section.has("rope_type") else "type"
    match section.string(key, default="default"):
        case "default":
            return None
        case "linear":
            return LinearScaling(section.number("factor"))
        case "llama3":
            low, high = section.number("low_freq_factor"), section.number("high_freq_factor")
            if high <= low:
                raise section.wrong("high_freq_factor", f"above low_freq_factor, {low:g}")
            return Llama3Scaling(
                factor=section.number("factor"),
                low_freq_factor=low,
                high_freq_factor=high,
                original_max_position=section.integer(
                    "original_max_position_embeddings", default=max_position, most=MAX_POSITIONS
                ),
            )
        case _:
            raise section.wrong(key, "one of default, linear, llama3")
