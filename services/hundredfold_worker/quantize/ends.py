"""What stands outside of the layers: embedding, last norm, output layer; dense unless rules name them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hundredfold_worker.quantize.errors import QuantizeError
from hundredfold_worker.quantize.forward import Calibrator
from hundredfold_worker.quantize.packing import WORD
from hundredfold_worker.quantize.progress import LayerError
from hundredfold_worker.quantize.recipe import Method, Recipe
from hundredfold_worker.quantize.rounders import ROUNDERS, join_rows
from hundredfold_worker.quantize.smoothing import Smoother, column_scales
from hundredfold_worker.quantize.source import Source
from hundredfold_worker.quantize.statistics import InputStatistics, Wanted, gather

AT_ONCE = 1 << 24
"""Numbers of a table that are rounded at once, in whole words of rows: it may be larger than a layer."""

OF_TABLES = (Method.GPTQ, Method.INT8, Method.FP8)
"""Methods for the embedding: nothing before it could take scales."""


@dataclass(frozen=True, slots=True)
class QuantizedEnds:
    """As they are written."""

    tensors: dict[str, Tensor]
    errors: list[LayerError]
    tied: bool
    """Whether the output layer is still the embedding."""


def check_ends(source: Source, recipes: Mapping[str, Recipe | None]) -> None:
    """Raises ``QuantizeError`` when a table cannot be written as asked."""
    shape = (source.description.vocab_size, source.description.hidden_size)
    for name in (source.ends.embedding, source.ends.head):
        recipe = recipes.get(name)
        if recipe is None:
            continue
        reason = ROUNDERS[recipe.method].refuses(shape, recipe)
        if name == source.ends.embedding and (recipe.method not in OF_TABLES or recipe.act_order):
            known = ", ".join(method.value for method in OF_TABLES)
            reason = f"an embedding is quantized by {known}, without act-order: rows are looked up in it"
        if reason:
            raise QuantizeError(f"layer '{name}' cannot be {recipe}: {reason}")


@dataclass(frozen=True, slots=True)
class EndsQuantizer:
    """Quantizes them once every layer is done.

    A tied output layer with a recipe of its own becomes a matrix of its own. Without one it stays the
    embedding, quantized or not, and what comes out of the layers judges how that is rounded.
    """

    source: Source
    recipes: Mapping[str, Recipe | None]
    calibrator: Calibrator | None
    """``None`` where no method looks at inputs."""
    at_once: int = AT_ONCE

    def quantize(self, hidden: Sequence[Tensor]) -> QuantizedEnds:
        """``hidden`` float32[T, hidden] came out of the last layer."""
        ends, norm = self.source.ends, self.source.final_norm()
        tied = ends.tied and self.recipes.get(ends.head) is None
        table = self.source.embedding()
        inputs = self._inputs(hidden, norm, ends.embedding) if tied else None
        made, errors = self._rounded(ends.embedding, table, inputs, None)
        if not tied:
            table = self.source.head()
            scales, norm = self._smoothed(hidden, norm, table)
            inputs = self._inputs(hidden, norm, ends.head)
            own, more = self._rounded(ends.head, table, inputs, scales)
            made, errors = made | own, errors + more
        made[f"{self.source.names.final_norm}.weight"] = norm.to(self.source.dtype)
        return QuantizedEnds(made, errors, tied)

    def _inputs(self, hidden: Sequence[Tensor], norm: Tensor, name: str) -> InputStatistics | None:
        """What the output layer's rounding looks at."""
        recipe = self.recipes.get(name)
        return None if recipe is None else self._seen(hidden, norm, ROUNDERS[recipe.method].looks)

    def _seen(self, hidden: Sequence[Tensor], norm: Tensor, wanted: Wanted) -> InputStatistics | None:
        if self.calibrator is None:
            return None
        final = self.calibrator.final_norm(norm)
        return gather((final(x) for x in hidden), wanted)

    def _smoothed(
        self, hidden: Sequence[Tensor], norm: Tensor, table: Tensor
    ) -> tuple[Tensor | None, Tensor]:
        """Scales for the output layer's columns, and the norm that was divided by them."""
        recipe = self.recipes.get(self.source.ends.head)
        wanted = Wanted.NOTHING if recipe is None else ROUNDERS[recipe.method].scales_by
        inputs = self._seen(hidden, norm, wanted)
        if recipe is None or inputs is None:
            return None, norm
        scales = column_scales([(table, recipe)], inputs, lambda values: values)
        norm, scales = Smoother(self.source.names.norm_offset, self.source.dtype).divide_norm(norm, scales)
        return scales, norm

    def _rounded(
        self, name: str, table: Tensor, inputs: InputStatistics | None, scales: Tensor | None
    ) -> tuple[dict[str, Tensor], list[LayerError]]:
        """A table's tensors by name, part after part; as it is where it has no recipe."""
        recipe = self.recipes.get(name)
        if recipe is None:
            return {f"{name}.weight": table}, []
        rounder = ROUNDERS[recipe.method]
        if inputs is None and rounder.looks > Wanted.NOTHING:  # rows that are looked up count alike
            inputs = InputStatistics.of_width(table.shape[1])
            inputs.gram.fill_diagonal_(1)
        parts, off, whole = [], 0.0, 0.0
        rows = max(WORD, self.at_once // table.shape[1] // WORD * WORD)
        for first in range(0, len(table), rows):
            part = table[first : first + rows]
            weight = part.float() if scales is None else part.float() * scales
            if not bool(torch.isfinite(weight).all()):
                path = self.source.files.path
                raise QuantizeError(f"{path}: layer '{name}' holds numbers that are not finite")
            [rounded] = rounder.round([(name, weight)], recipe, inputs)
            parts.append(rounded.tensors)
            off += _size(rounded.matrix - weight, inputs)
            whole += _size(weight, inputs)
        error = math.sqrt(max(off, 0) / whole) if whole > 0 else 0.0
        tensors = {f"{name}.{suffix}": tensor for suffix, tensor in join_rows(parts).items()}
        return tensors, [LayerError(name, str(recipe), error)]


def _size(weight: Tensor, inputs: InputStatistics | None) -> float:
    """Squared, of the outputs; of the weights themselves where there are no inputs."""
    if inputs is None or inputs.products is None:
        return float(weight.square().sum(dtype=torch.float64))
    return inputs.error(weight)
