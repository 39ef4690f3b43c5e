"""GPTQ: columns are rounded one after the other, and each one's error is made up for by those that follow.

Frantar et al. 2022, https://arxiv.org/abs/2210.17323
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hundredfold_worker.quantize.errors import QuantizeError
from hundredfold_worker.quantize.recipe import WHOLE_ROW, Recipe
from hundredfold_worker.quantize.rounding import best_grid

DAMPING = 0.01
"""Share of the mean of the Hessian's diagonal that is added to it."""

AT_ONCE = 128
"""Columns after which the rest of the matrix is brought up to date."""


@dataclass(frozen=True, slots=True)
class GroupedCodes:
    """A matrix rounded to grouped integers."""

    codes: Tensor
    """uint8[N, K], columns as in the matrix."""
    scales: Tensor
    """float32[N, groups] of values that float16 holds."""
    zeros: Tensor
    """float32[N, groups] of whole numbers."""
    group_of: Tensor
    """int64[K]: each column's group."""

    def matrix(self) -> Tensor:
        """float32[N, K]: what the codes stand for."""
        scales, zeros = self.scales[:, self.group_of], self.zeros[:, self.group_of]
        return (self.codes.float() - zeros) * scales

    def rows(self, part: slice) -> GroupedCodes:
        """Some of the rows."""
        return GroupedCodes(self.codes[part], self.scales[part], self.zeros[part], self.group_of)


def gptq(matrix: Tensor, gram: Tensor, recipe: Recipe) -> GroupedCodes:
    """Round ``matrix`` float32[N, K], whose inputs had ``gram`` [K, K]. Rows do not depend on each other.

    With ``act_order`` the columns that matter most come first, and groups are of columns in that order.
    Raises ``QuantizeError`` when the inputs are not finite.
    """
    rows, columns = matrix.shape
    size = columns if recipe.group_size == WHOLE_ROW else recipe.group_size
    importance = gram.diagonal()
    order = torch.arange(columns)
    if recipe.act_order:
        order = torch.argsort(importance, descending=True, stable=True)
    inverse = _inverse_factor(gram[order][:, order])
    left, weights = matrix[:, order].clone(), importance[order].clamp_min(1e-12)
    codes = torch.empty(rows, columns, dtype=torch.uint8)
    scales, zeros = [], []
    step = size * max(1, AT_ONCE // size) if size < columns else AT_ONCE
    current = best_grid(left[:, :size], weights[:size], recipe.bits, recipe.symmetric)
    scales, zeros = [current.scale], [current.zero]
    for first in range(0, columns, step):
        last = min(first + step, columns)
        block, errors = left[:, first:last], left.new_empty(rows, last - first)
        factor = inverse[first:last, first:last]
        for index in range(last - first):
            if first + index and (first + index) % size == 0:
                group = slice(index, min(index + size, last - first))
                own = weights[first + group.start : first + group.stop]
                current = best_grid(block[:, group], own, recipe.bits, recipe.symmetric)
                scales.append(current.scale)
                zeros.append(current.zero)
            column = block[:, index : index + 1]
            own_codes = current.codes(column)
            codes[:, first + index] = own_codes[:, 0].to(torch.uint8)
            error = (column - current.value(own_codes)) / factor[index, index]
            block[:, index:].addmm_(error, factor[index : index + 1, index:], alpha=-1)
            errors[:, index] = error[:, 0]
        left[:, last:].addmm_(errors, inverse[first:last, last:], alpha=-1)
    back = torch.empty_like(order)
    back[order] = torch.arange(columns)
    return GroupedCodes(codes[:, back], torch.cat(scales, 1), torch.cat(zeros, 1), back // size)


def _inverse_factor(gram: Tensor) -> Tensor:
    """The upper Cholesky factor of the damped Hessian's inverse, float32[K, K]."""
    hessian = gram.double()
    diagonal = hessian.diagonal()
    if not bool(torch.isfinite(diagonal).all()):
        raise QuantizeError("the inputs of a layer are not finite over the calibration text")
    diagonal[diagonal == 0] = 1  # never active: such a column is rounded by itself
    damping = DAMPING * float(diagonal.mean())
    for _ in range(6):
        diagonal += damping
        lower, failed = torch.linalg.cholesky_ex(hessian)
        if not int(failed):
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if not int(failed):
                factor: Tensor = upper.float()
                return factor
        damping *= 10
    raise QuantizeError("the inputs of a layer are too alike to be told apart: use more calibration text")
