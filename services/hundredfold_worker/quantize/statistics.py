"""What is remembered of a layer's inputs: sums from which every objective here can be computed."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@enum.unique
class Wanted(enum.IntEnum):
    """How much of the inputs a method looks at; each includes those before."""

    NOTHING = 0
    SIZES = 1
    """How large each column is."""
    PRODUCTS = 2
    """How columns go together."""


@dataclass(slots=True)
class InputStatistics:
    """Sums over all tokens of inputs x [T, K]."""

    magnitude: Tensor
    """float32[K]: sum of absolute values."""
    largest: Tensor
    """float32[K]: largest absolute value."""
    products: Tensor | None
    """float32[K, K]: sum of x xT, where it was wanted."""
    count: int = 0
    """Tokens."""

    @classmethod
    def of_width(cls, columns: int, wanted: Wanted = Wanted.PRODUCTS) -> InputStatistics:
        """Nothing seen yet."""
        products = torch.zeros(columns, columns) if wanted is Wanted.PRODUCTS else None
        return cls(torch.zeros(columns), torch.zeros(columns), products)

    def add(self, x: Tensor) -> None:
        """Count the inputs ``x`` float32[T, K]."""
        size = x.abs()
        self.magnitude += size.sum(0)
        torch.maximum(self.largest, size.amax(0), out=self.largest)
        if self.products is not None:
            self.products.addmm_(x.T, x)
        self.count += len(x)

    @property
    def mean(self) -> Tensor:
        """float32[K]: mean absolute value."""
        return self.magnitude / max(self.count, 1)

    @property
    def gram(self) -> Tensor:
        """float32[K, K]: sum of x xT. The squared error of a changed weight is ``trace(D gram DT)``."""
        if self.products is None:
            raise ValueError("products of columns were not gathered")
        return self.products

    def error(self, difference: Tensor) -> float:
        """Squared error over all outputs of a weight that is off by ``difference`` [N, K]."""
        return float(((difference @ self.gram) * difference).sum(dtype=torch.float64))


def gather(inputs: Iterable[Tensor], wanted: Wanted) -> InputStatistics | None:
    """The statistics of all sequences [T, K]; ``None`` where nothing is wanted."""
    found: InputStatistics | None = None
    if wanted is Wanted.NOTHING:
        return None
    for x in inputs:
        if found is None:
            found = InputStatistics.of_width(x.shape[1], wanted)
        found.add(x)
    return found
