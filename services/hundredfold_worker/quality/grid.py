"""Losses by kind of product and layer, for heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hundredfold_worker.quality.layers import HEAD, PARTS, LayerLoss
from hundredfold_worker.quality.suggest import kind_of, layer_of

_SAID = {
    "qkv": "queries, keys, values",
    "attention_output": "attention output",
    "gate_up": "gate, up",
    "down": "down",
}
OUTPUT = "output layer"


@dataclass(frozen=True, slots=True)
class Grid:
    """A row for each kind, a column for each layer."""

    kinds: tuple[str, ...]
    layers: tuple[str, ...]
    errors: tuple[tuple[float | None, ...], ...]
    """``None`` where there is no such product."""


def grid_of(losses: Sequence[LayerLoss]) -> Grid:
    """The losses in rows; the output layer is a column of its own."""
    found = {(kind_of(loss.pattern), layer_of(loss.pattern)): loss.error for loss in losses}
    numbers = sorted({layer for _, layer in found if layer is not None})
    rows = [
        (_SAID[part], (*(found.get((pattern, layer)) for layer in numbers), None))
        for part, pattern in PARTS.items()
    ]
    output = (*(None for _ in numbers), found.get((HEAD, None)))
    rows.append((OUTPUT, output))
    kinds, errors = zip(*rows, strict=True)
    return Grid(kinds, (*map(str, numbers), "out"), errors)
