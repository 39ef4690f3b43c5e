"""One decoder layer: scales folded in, then rounded stage by stage on the inputs that rounded parts give."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hundredfold_worker.quantize.forward import Calibrator, Product, Stage, stages
from hundredfold_worker.quantize.progress import LayerError
from hundredfold_worker.quantize.recipe import Recipe
from hundredfold_worker.quantize.rounders import ROUNDERS, Rounded, Rounder
from hundredfold_worker.quantize.smoothing import Smoother
from hundredfold_worker.quantize.source import Source, SourceLayer
from hundredfold_worker.quantize.statistics import InputStatistics, Wanted

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LayerQuantizer:
    """Quantizes the layers of a model in order."""

    source: Source
    recipes: Mapping[str, Recipe | None]
    calibrator: Calibrator | None
    """``None`` where no method looks at inputs."""

    def quantize(
        self, index: int, hidden: Sequence[Tensor], tell: Tell
    ) -> tuple[dict[str, Tensor], list[LayerError]]:
        """The layer's tensors as they are written. ``hidden`` is passed through it, in place."""
        tell("read")
        layer = self.source.layer(index)
        dtype = self.source.dtype
        layer.norms = {name: norm.to(dtype).float() for name, norm in layer.norms.items()}
        work = _Work(layer, self.recipes, dtype)
        if self.calibrator is None:
            for stage in Stage:
                work.round(stage, None)
            return work.tensors(), work.errors
        by_scales = self._wanted(layer, lambda rounder: rounder.scales_by)
        if max(by_scales.values()) > Wanted.NOTHING:
            tell("inputs")
            seen: dict[Stage, InputStatistics | None] = {}
            copies = [x.clone() for x in hidden]
            self.calibrator.run(layer, work.products, copies, by_scales, seen.__setitem__)
            tell("scales")
            Smoother(self.source.names.norm_offset, dtype).apply(layer, self.recipes, seen)
            work = _Work(layer, self.recipes, dtype)

        def at_stage(stage: Stage, inputs: InputStatistics | None) -> None:
            tell(stage.value)
            work.round(stage, inputs)

        by_rounding = self._wanted(layer, lambda rounder: rounder.looks)
        self.calibrator.run(layer, work.products, hidden, by_rounding, at_stage)
        return work.tensors(), work.errors

    def _wanted(self, layer: SourceLayer, of: Callable[[Rounder], Wanted]) -> dict[Stage, Wanted]:
        """The most that a stage's methods look at."""
        found = {}
        for stage, names in stages(layer).items():
            recipes = [recipe for name in names if (recipe := self.recipes[name]) is not None]
            most = (of(ROUNDERS[recipe.method]) for recipe in recipes)
            found[stage] = max(most, default=Wanted.NOTHING)
        return found


class _Work:
    """A layer on its way from floats to what is written."""

    def __init__(self, layer: SourceLayer, recipes: Mapping[str, Recipe | None], dtype: torch.dtype) -> None:
        self._layer = layer
        self._recipes = recipes
        self._dtype = dtype
        self._stages = stages(layer)
        self._made: dict[str, Mapping[str, Tensor]] = {}
        self.errors: list[LayerError] = []
        self.products = {
            name: Product(matrix.weight, None if matrix.bias is None else matrix.bias.to(dtype).float())
            for name, matrix in layer.matrices.items()
        }

    def round(self, stage: Stage, inputs: InputStatistics | None) -> None:
        """Round a stage's linear layers, those with one recipe together."""
        names = self._stages[stage]
        for recipe in dict.fromkeys(self._recipes[name] for name in names):
            own = [name for name in names if self._recipes[name] == recipe]
            weights = [(name, self._layer.matrices[name].weight) for name in own]
            if recipe is None:
                made = [_dense(weight, self._dtype) for _, weight in weights]
            else:
                made = ROUNDERS[recipe.method].round(weights, recipe, inputs)
            for (name, weight), rounded in zip(weights, made, strict=True):
                if recipe is not None:
                    error = _error(weight, rounded.matrix, inputs)
                    self.errors.append(LayerError(name, str(recipe), error))
                    self.products[name].round_input = ROUNDERS[recipe.method].round_input
                self.products[name].weight = rounded.matrix
                self._made[name] = rounded.tensors

    def tensors(self) -> dict[str, Tensor]:
        """Everything of the layer, by the names of the checkpoint."""
        found: dict[str, Tensor] = {}
        for name, tensors in self._made.items():
            found.update({f"{name}.{suffix}": tensor for suffix, tensor in tensors.items()})
            bias = self._layer.matrices[name].bias
            if bias is not None:
                found[f"{name}.bias"] = bias.to(self._dtype)
        found.update({f"{name}.weight": norm.to(self._dtype) for name, norm in self._layer.norms.items()})
        return found


def _dense(weight: Tensor, dtype: torch.dtype) -> Rounded:
    kept = weight.to(dtype)
    return Rounded(kept.float(), {"weight": kept})


def _error(weight: Tensor, rounded: Tensor, inputs: InputStatistics | None) -> float:
    """Norm of the output's difference by the output's; of the weights' where there are no inputs."""
    difference = rounded - weight
    if inputs is None or inputs.products is None:
        error, whole = float(difference.square().sum()), float(weight.square().sum())
    else:
        error, whole = inputs.error(difference), inputs.error(weight)
    return math.sqrt(max(error, 0) / whole) if whole > 0 else 0.0
