"""What the parameters of a decoder are called in a checkpoint; a weight's tensors have suffixes to these."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hundredfold_worker.model.description import ModelDescription


@dataclass(frozen=True, slots=True)
class LayerNames:
    """One layer."""

    attention_norm: str
    query: str
    key: str
    value: str
    attention_output: str
    mlp_norm: str
    gate: str
    up: str
    down: str


@dataclass(frozen=True, slots=True)
class ParameterNames:
    """The whole model."""

    embedding: str
    final_norm: str
    head: str
    layers: tuple[LayerNames, ...]
    ignored: re.Pattern[str]
    """Tensors that may be there and are not needed, such as precomputed rotary frequencies."""


@dataclass(frozen=True, slots=True)
class DescribedModel:
    """What an architecture reads from a checkpoint's configuration."""

    description: ModelDescription
    names: ParameterNames
