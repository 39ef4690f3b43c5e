"""Checks of positions and rotary settings, from the configuration alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hundredfold.findings import Finding, Severity, fine
from hundredfold.models import GgufMetadata, ModelFiles, gguf_metadata
from hundredfold_worker.estimate.config_values import Config

_KINDS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3", "su", "none")
_NEED_ORIGINAL = ("yarn", "llama3", "longrope", "su")
_OWN_THETA = ("gemma3", "gemma3_text")
"""Kinds whose configuration class has a theta that fits."""
_SHORT = 4096
"""Positions up to which a theta of 10,000 is usual."""
_USUAL_THETA = 10_000.0


@dataclass(frozen=True, slots=True)
class Rope:
    """What a checkpoint says of positions."""

    where: str
    max_position: int | None
    theta: float | None
    kind: str = "default"
    factor: float | None = None
    original: int | None = None
    own_theta: bool = False
    disagree: str = ""
    """Two places that say different things; empty for none."""


def check_positions(files: ModelFiles, max_model_len: int | None) -> Iterator[Finding]:
    """Raises ``CheckpointError`` or ``StartError`` for damaged files."""
    if files.container == "gguf":
        rope = _from_gguf(gguf_metadata(files.weights[0]))
    elif files.config is not None:
        rope = _from_config(Config.read(files.config))
    else:
        return
    found = [*_reach(rope, max_model_len), *_theta(rope), *_scaling(rope, max_model_len)]
    yield from found
    if not found:
        theta = "its default" if rope.theta is None else f"{rope.theta:g}"
        yield fine("positions", f"{rope.max_position} positions, theta {theta}, scaling {rope.kind}")


def _reach(rope: Rope, max_model_len: int | None) -> Iterator[Finding]:
    if rope.max_position is None:
        yield Finding(
            "positions-unstated",
            Severity.WARNING,
            f"{rope.where} does not say for how many positions the model was made",
            "max_position_embeddings was lost in a conversion",
            "set it, or max_model_len, to what the original model says",
        )
        return
    reach = rope.max_position
    if rope.kind in ("yarn", "linear", "dynamic") and rope.factor:
        reach = max(reach, int((rope.original or rope.max_position) * rope.factor))
    if max_model_len is not None and max_model_len > reach:
        yield Finding(
            "position-overflow",
            Severity.ERROR,
            f"max_model_len {max_model_len} is beyond the {reach} positions that the model was made for",
            "angles at these positions were never trained: text falls apart beyond the limit",
            f"set max_model_len to at most {reach}, or add a rope_scaling that the model was trained with",
        )


def _theta(rope: Rope) -> Iterator[Finding]:
    if rope.theta is None and not rope.own_theta and (rope.max_position or 0) > _SHORT:
        yield Finding(
            "rope-theta-missing",
            Severity.WARNING,
            f"{rope.where} has no rope_theta, so {_USUAL_THETA:g} is used for {rope.max_position} positions",
            "the key was lost in a conversion, or stands where only newer readers look",
            "copy rope_theta (or rope_parameters) from the original config.json; Llama 3 has 500000",
        )


def _scaling(rope: Rope, max_model_len: int | None) -> Iterator[Finding]:
    if rope.disagree:
        yield Finding(
            "rope-disagree",
            Severity.ERROR,
            f"{rope.where}: {rope.disagree}",
            "one was edited by hand or by a tool that knows only one of them",
            "keep the one of the original model; rope_parameters is the newer",
        )
    if rope.kind not in _KINDS:
        yield Finding(
            "rope-kind-unknown",
            Severity.ERROR,
            f"{rope.where}: rope scaling {rope.kind!r} is not known",
            "a newer kind, or a misspelt one",
            f"known are {', '.join(_KINDS[:6])}",
        )
        return
    if rope.factor is not None and rope.factor < 1:
        yield Finding(
            "rope-factor",
            Severity.ERROR,
            f"{rope.where}: rope scaling factor {rope.factor:g} is below 1: positions are squeezed together",
            "the factor was turned upside down",
            f"try {1 / rope.factor:g}" if rope.factor > 0 else "set a factor of 1 or more",
        )
    if rope.kind in _NEED_ORIGINAL and rope.original is None:
        yield Finding(
            "rope-original-missing",
            Severity.WARNING,
            f"{rope.where}: {rope.kind} scaling has no original_max_position_embeddings; "
            f"{rope.max_position} is taken for it",
            "the key was lost, or stands beside the section under another name",
            "copy it from the original model; frequencies come out wrong without it",
        )
    if rope.original and rope.factor and rope.max_position and rope.kind == "yarn":
        reach = rope.original * rope.factor
        if rope.max_position > 1.01 * reach:
            yield Finding(
                "rope-reach",
                Severity.WARNING,
                f"{rope.where}: {rope.max_position} positions, but {rope.original} times a factor of "
                f"{rope.factor:g} reach {reach:g}",
                "max_position_embeddings was raised without the factor",
                f"set max_model_len {int(reach)}, or the factor that the model was trained with",
            )
    longest = max_model_len or rope.max_position
    if rope.kind in ("longrope", "su") and rope.original and longest and longest > rope.original:
        yield Finding(
            "longrope-long",
            Severity.WARNING,
            f"max_model_len {longest} is beyond {rope.original}, so all prompts get the long factors",
            "what lies in a cache cannot be turned again, so one set is chosen at load",
            f"set max_model_len {rope.original} where all prompts are short",
        )


def _from_config(config: Config) -> Rope:
    values = config.values
    new, old = _flat(config.section("rope_parameters")), config.section("rope_scaling")
    section = new or old
    theta = _number(values, "rope_theta") or _number(new, "rope_theta") or _number(old, "rope_theta")
    disagree = ""
    if new and old:
        differing = [
            key for key in ("factor", "rope_type") if key in new and key in old and new[key] != old[key]
        ]
        if differing:
            key = differing[0]
            disagree = f"'{key}' is {new[key]} in rope_parameters and {old[key]} in rope_scaling"
    original = values.get("original_max_position_embeddings", section.get("original_max_position_embeddings"))
    return Rope(
        where=config.path.name,
        max_position=config.optional("max_position_embeddings", "n_positions", "max_sequence_length"),
        theta=theta,
        kind=str(section.get("rope_type") or section.get("type") or "default"),
        factor=_number(section, "factor"),
        original=original if isinstance(original, int) else None,
        own_theta=config.text("model_type") in _OWN_THETA,
        disagree=disagree,
    )


def _flat(section: Mapping[str, Any]) -> Mapping[str, Any]:
    """The section itself, or what it says of layers that see everything."""
    inner = section.get("full_attention")
    return inner if isinstance(inner, dict) else section


def _from_gguf(metadata: GgufMetadata) -> Rope:
    name = metadata.string("general.architecture") or ""
    return Rope(
        where=metadata.path.name,
        max_position=metadata.integer(f"{name}.context_length"),
        theta=metadata.number(f"{name}.rope.freq_base"),
        kind=metadata.string(f"{name}.rope.scaling.type") or "default",
        factor=metadata.number(f"{name}.rope.scaling.factor"),
        original=metadata.integer(f"{name}.rope.scaling.original_context_length"),
    )


def _number(values: Mapping[str, Any], key: str) -> float | None:
    value = values.get(key)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
