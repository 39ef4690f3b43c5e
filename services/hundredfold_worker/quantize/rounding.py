"""Rounding to grouped integers: where scales and zero points come from, and what codes stand for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SHRINKS = tuple(1 - step * 0.04 for step in range(11))
"""Parts of a group's full range that are tried: a narrower range is finer, and clips its ends."""

STORED = torch.float16
"""The type in which scales of groups are stored, so codes are made for these very scales."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Scales and zero points of some groups: ``w = scale * (code - zero)``."""

    scale: Tensor
    """float32 of values that ``STORED`` holds; not 0."""
    zero: Tensor
    """float32 of whole numbers."""
    largest: int
    """The largest code."""

    def codes(self, values: Tensor) -> Tensor:
        """The nearest codes, as float32 in the shape of ``values``."""
        return (values / self.scale + self.zero).round_().clamp_(0, self.largest)

    def value(self, codes: Tensor) -> Tensor:
        """What codes stand for."""
        return (codes - self.zero) * self.scale

    def rounded(self, values: Tensor) -> Tensor:
        """The nearest values that have a code."""
        return self.value(self.codes(values))


def grid(low: Tensor, high: Tensor, bits: int, symmetric: bool) -> Grid:
    """The grid over ranges that hold 0; ``low`` and ``high`` have any shape.

    Zero points are at least 1: some readers add 1 to the number less 1 that GPTQ's first format stores
    without room for a carry.
    """
    largest = 2**bits - 1
    low, high = low.clamp_max(0), high.clamp_min(0)
    if symmetric:
        reach = torch.maximum(-low, high)
        low, high = -reach, reach
    scale = _stored((high - low) / largest)
    if symmetric:
        return Grid(scale, torch.full_like(scale, 2 ** (bits - 1)), largest)
    return Grid(scale, (-low / scale).round_().clamp_(1, largest), largest)


def full_grid(weights: Tensor, bits: int, symmetric: bool) -> Grid:
    """The grid from the least to the largest of the last dimension, which is kept as 1."""
    return grid(weights.amin(-1, keepdim=True), weights.amax(-1, keepdim=True), bits, symmetric)


def best_grid(weights: Tensor, importance: Tensor, bits: int, symmetric: bool) -> Grid:
    """Of narrower and narrower ranges the one with the least ``sum(importance * error ** 2)``, row by row.

    ``weights`` float32[..., g] and ``importance`` float32[g] give a grid [..., 1].
    """
    low, high = weights.amin(-1, keepdim=True), weights.amax(-1, keepdim=True)
    best = grid(low, high, bits, symmetric)
    least = _weighted(weights, best, importance)
    for shrink in SHRINKS[1:]:
        tried = grid(low * shrink, high * shrink, bits, symmetric)
        error = _weighted(weights, tried, importance)
        better = error < least
        least = torch.where(better, error, least)
        best = Grid(
            torch.where(better, tried.scale, best.scale),
            torch.where(better, tried.zero, best.zero),
            best.largest,
        )
    return best


def _weighted(weights: Tensor, tried: Grid, importance: Tensor) -> Tensor:
    return ((tried.rounded(weights) - weights).square_() * importance).sum(-1, keepdim=True)


def _stored(scale: Tensor) -> Tensor:
    """As it will be read; a group of zeros has any scale."""
    kept = scale.to(STORED).float()
    return torch.where(kept == 0, torch.finfo(STORED).smallest_normal, kept)
