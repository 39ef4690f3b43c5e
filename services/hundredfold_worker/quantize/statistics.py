"""What is remembered of a layer's inputs: sums from which every objective here can be computed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class InputStatistics:
    """Sums over all tokens of inputs x [T, K]."""

    gram: Tensor
    """float32[K, K]: sum of x xT. The squared error of a changed weight is ``trace(D gram DT)``."""
    magnitude: Tensor
    """float32[K]: sum of absolute values."""
    largest: Tensor
    """float32[K]: largest absolute value."""
    count: int = 0
    """Tokens."""

    @classmethod
    def of_width(cls, columns: int) -> InputStatistics:
        """Nothing seen yet."""
        return cls(torch.zeros(columns, columns), torch.zeros(columns), torch.zeros(columns))

    def add(self, x: Tensor) -> None:
        """Count the inputs ``x`` float32[T, K]."""
        self.gram.addmm_(x.T, x)
        size = x.abs()
        self.magnitude += size.sum(0)
        torch.maximum(self.largest, size.amax(0), out=self.largest)
        self.count += len(x)

    @property
    def mean(self) -> Tensor:
        """float32[K]: mean absolute value."""
        return self.magnitude / max(self.count, 1)

    def error(self, difference: Tensor) -> float:
        """Squared error over all outputs of a weight that is off by ``difference`` [N, K]."""
        return float(((difference @ self.gram) * difference).sum(dtype=torch.float64))
