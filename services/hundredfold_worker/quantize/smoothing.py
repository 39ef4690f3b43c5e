"""Moves size from a layer's inputs into its weights: columns are multiplied, what makes the input divided.

The scales are AWQ's or SmoothQuant's (Xiao et al. 2022, https://arxiv.org/abs/2211.10438). The layer computes
the same, up to the rounding of norms, which is made up for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hundredfold_worker.quantize.awq import awq_scales
from hundredfold_worker.quantize.forward import Stage, stages
from hundredfold_worker.quantize.recipe import Method, Recipe
from hundredfold_worker.quantize.source import Matrix, SourceLayer
from hundredfold_worker.quantize.statistics import InputStatistics

SMOOTHING = (Method.AWQ, Method.SMOOTHQUANT)
ALPHA = 0.5
"""SmoothQuant's share of difficulty that moves to the weights."""


@dataclass(frozen=True, slots=True)
class Smoother:
    """What it needs to know of the model."""

    norm_offset: float
    """What is added to a norm's weight as it is stored."""
    dtype: torch.dtype
    """In which norms are written."""

    def apply(
        self,
        layer: SourceLayer,
        recipes: Mapping[str, Recipe | None],
        inputs: Mapping[Stage, InputStatistics | None],
    ) -> None:
        """Scale every stage that has a method which asks for it, and something to fold scales into."""
        for stage, names in stages(layer).items():
            asking = [(name, recipe) for name in names if (recipe := recipes[name]) is not None]
            asking = [(name, recipe) for name, recipe in asking if recipe.method in SMOOTHING]
            own = inputs[stage]
            if not asking or own is None or (stage in _NORMS and self._norm(layer, stage) is None):
                continue
            scales = _scales(layer, stage, asking, own)
            scales = self._divide_origin(layer, stage, scales)
            for name in names:
                layer.matrices[name].weight *= scales

    def _norm(self, layer: SourceLayer, stage: Stage) -> str | None:
        return layer.names.attention_norm if stage is Stage.QUERY_KEY_VALUE else layer.names.mlp_norm

    def _divide_origin(self, layer: SourceLayer, stage: Stage, scales: Tensor) -> Tensor:
        """Divide what makes the inputs; returns the scales as they came out."""
        if stage not in _NORMS:
            attention = layer.description.attention
            per_row = scales
            if stage is Stage.ATTENTION_OUTPUT:  # query heads of one value head have the same scales
                per_row = scales.view(attention.num_kv_heads, -1, attention.head_dim)[:, 0].flatten()
            _divide_rows(_origin(layer, stage), per_row)
            return scales
        name = self._norm(layer, stage)
        assert name is not None
        layer.norms[name], scales = self.divide_norm(layer.norms[name], scales)
        return scales

    def divide_norm(self, old: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
        """A norm's weight as it is stored, divided by scales [K] above 0, and the scales as they came out."""
        new = (((old + self.norm_offset) / scales) - self.norm_offset).to(self.dtype).float()
        whole = new + self.norm_offset
        return new, torch.where(whole == 0, scales, (old + self.norm_offset) / whole)


_NORMS = (Stage.QUERY_KEY_VALUE, Stage.GATE_UP)
"""Stages whose inputs come out of a norm."""


def _origin(layer: SourceLayer, stage: Stage) -> Matrix:
    """The matrix whose last rows make the inputs: values, or what the gate multiplies."""
    names = layer.names
    parts = names.query_key_value if stage is Stage.ATTENTION_OUTPUT else names.gate_up
    return layer.matrices[parts[-1]]


def _divide_rows(matrix: Matrix, scales: Tensor) -> None:
    last = slice(len(matrix.weight) - len(scales), None)
    matrix.weight[last] /= scales[:, None]
    if matrix.bias is not None:
        matrix.bias[last] /= scales


def _scales(
    layer: SourceLayer,
    stage: Stage,
    asking: Sequence[tuple[str, Recipe]],
    inputs: InputStatistics,
) -> Tensor:
    matrices = [(layer.matrices[name].weight, recipe) for name, recipe in asking]
    return column_scales(matrices, inputs, lambda values: _alike(layer, stage, values))


def column_scales(
    matrices: Sequence[tuple[Tensor, Recipe]], inputs: InputStatistics, alike: Callable[[Tensor], Tensor]
) -> Tensor:
    """float32[K] above 0: what columns of matrices [N, K] are multiplied by, and their inputs divided.

    ``alike`` gives columns that have to be scaled alike the same value.
    """
    if Method.AWQ in {recipe.method for _, recipe in matrices}:
        own = [(weight, recipe) for weight, recipe in matrices if recipe.method is Method.AWQ]
        return awq_scales(own, inputs, alike(inputs.mean))
    largest = alike(inputs.largest)
    of_weights = alike(torch.stack([weight.abs().amax(0) for weight, _ in matrices]).amax(0).float())
    scales = largest.clamp_min(1e-5) ** ALPHA / of_weights.clamp_min(1e-5) ** (1 - ALPHA)
    return scales.clamp_min(1e-5)


def _alike(layer: SourceLayer, stage: Stage, values: Tensor) -> Tensor:
    """Columns that have to be scaled alike get the largest of their values."""
    if stage is not Stage.ATTENTION_OUTPUT:
        return values
    attention = layer.description.attention
    by_head = values.view(attention.num_kv_heads, -1, attention.head_dim)
    return by_head.amax(1, keepdim=True).expand_as(by_head).flatten()
