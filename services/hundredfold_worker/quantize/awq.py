"""AWQ: columns of large inputs are scaled up before rounding; ends of ranges are clipped where it pays.

Lin et al. 2023, https://arxiv.org/abs/2306.00978
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hundredfold_worker.quantize.gptq import GroupedCodes
from hundredfold_worker.quantize.recipe import WHOLE_ROW, Recipe
from hundredfold_worker.quantize.rounding import full_grid
from hundredfold_worker.quantize.statistics import InputStatistics

ROWS = 256
"""Rows of a matrix, evenly spread, over which a power is judged: it is one number for all of them."""

STEPS = 20
"""Powers of the inputs' magnitude that are tried, from 0 up to less than 1."""

CLIPS = tuple(1 - step / STEPS for step in range(1, 11))
"""Parts of a group's largest weight that are tried as its end."""


def awq_scales(
    matrices: Sequence[tuple[Tensor, Recipe]], inputs: InputStatistics, magnitude: Tensor
) -> Tensor:
    """float32[K] above 0: what columns are multiplied by, and their inputs divided, for the least error.

    ``matrices`` float32[N, K] share the inputs; ``magnitude`` float32[K] says how large these are, equal
    where scales have to be.
    """
    level = magnitude.clamp_min(1e-4 * float(magnitude.max()) + 1e-12)
    best, least = torch.ones_like(level), float("inf")
    judged = [(matrix[:: -(-len(matrix) // ROWS)], recipe) for matrix, recipe in matrices]
    for step in range(STEPS):
        tried = level ** (step / STEPS)
        tried = tried / (tried.max() * tried.min()).sqrt()
        error = sum(
            inputs.error(_rounded(matrix * tried, recipe) / tried - matrix) for matrix, recipe in judged
        )
        if error < least:
            best, least = tried, error
    return best


def awq(matrix: Tensor, gram: Tensor, recipe: Recipe, *, clip: bool) -> GroupedCodes:
    """Round ``matrix`` float32[N, K], group by group; ``clip`` searches for a better end of each range."""
    rows, columns = matrix.shape
    size = columns if recipe.group_size == WHOLE_ROW else recipe.group_size
    by_group = matrix.view(rows, -1, size)
    if clip:
        by_group = _clipped(by_group, gram, recipe)
    grid = full_grid(by_group, recipe.bits, recipe.symmetric)
    codes = grid.codes(by_group).to(torch.uint8).reshape(rows, columns)
    return GroupedCodes(codes, grid.scale[:, :, 0], grid.zero[:, :, 0], torch.arange(columns) // size)


def _rounded(matrix: Tensor, recipe: Recipe) -> Tensor:
    rows, columns = matrix.shape
    by_group = matrix.view(rows, -1, columns if recipe.group_size == WHOLE_ROW else recipe.group_size)
    return full_grid(by_group, recipe.bits, recipe.symmetric).rounded(by_group).reshape(rows, columns)


def _clipped(by_group: Tensor, gram: Tensor, recipe: Recipe) -> Tensor:
    """Weights float32[N, G, g] cut where each group's own part of the output error is least."""
    size = by_group.shape[-1]
    blocks = torch.stack([part[:, first : first + size] for first, part in _row_blocks(gram, size)])
    end = by_group.abs().amax(-1, keepdim=True)
    best, least = by_group, _errors(by_group, by_group, blocks, recipe)
    for part in CLIPS:
        tried = torch.minimum(torch.maximum(by_group, -end * part), end * part)
        error = _errors(by_group, tried, blocks, recipe)
        better = error < least
        least, best = torch.where(better, error, least), torch.where(better, tried, best)
    return best


def _row_blocks(gram: Tensor, size: int) -> list[tuple[int, Tensor]]:
    return [(first, gram[first : first + size]) for first in range(0, len(gram), size)]


def _errors(wanted: Tensor, tried: Tensor, blocks: Tensor, recipe: Recipe) -> Tensor:
    """[N, G, 1]: squared error of what each group adds to the output."""
    off = (full_grid(tried, recipe.bits, recipe.symmetric).rounded(tried) - wanted).transpose(0, 1)
    return ((off @ blocks) * off).sum(-1, keepdim=True).transpose(0, 1)
