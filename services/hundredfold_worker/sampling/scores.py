"""What a scored token is told with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEAST_LOGPROB = -9999.0
"""Stands for an impossible token, so that JSON can hold it."""


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Scores of n tokens."""

    logprobs: NDArray[np.float32]
    """float32[n]."""
    ranks: NDArray[np.int64]
    """int64[n], 1 the likeliest; among equal logits the lower id is likelier."""
    top_ids: NDArray[np.int64]
    """int64[n, width], best first."""
    top_logprobs: NDArray[np.float32]
    """float32[n, width]."""

    def one(self, index: int, width: int) -> TokenScores:
        """Scores of a single token, with its ``width`` likeliest rivals."""
        part = slice(index, index + 1)
        top_ids, top_logprobs = self.top_ids[part, :width], self.top_logprobs[part, :width]
        return TokenScores(self.logprobs[part], self.ranks[part], top_ids, top_logprobs)
