"""What is kept of two sides' logits, position by position, and the figures that come of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

SURE = 0.5
"""Probability from which the first side is sure of its best token."""

_TWO_SIDED_95 = 1.96


@dataclass(frozen=True, slots=True)
class Figures:
    """The comparison in numbers; B against A."""

    positions: int
    perplexity: tuple[float, float]
    perplexity_increase: float
    """Share by which B's is higher than A's."""
    perplexity_increase_error: float
    """Half of its 95 % interval, from the differences position by position."""
    kl_mean: float
    """KL(A ‖ B) of the next token's distribution, in nats."""
    kl_99th: float
    cosine_mean: float
    """Between the logits."""
    cosine_least: float
    top1_agreement: float
    """Share of positions where both have the same best token."""
    top1_interval: tuple[float, float]
    """Its 95 % interval (Wilson's)."""
    sure_positions: int
    """Where A gives its best token a probability of at least a half."""
    sure_agreement: float | None
    """The same share there; ``None`` where A is never sure."""


@dataclass(slots=True)
class Measures:
    """Gathers; ``figures`` concludes."""

    losses: list[NDArray[np.float64]] = field(default_factory=list)
    """float64[2, n]: minus the log-probability of the text's own token, A and B."""
    divergences: list[NDArray[np.float64]] = field(default_factory=list)
    cosines: list[NDArray[np.float64]] = field(default_factory=list)
    agree: list[NDArray[np.bool_]] = field(default_factory=list)
    sure: list[NDArray[np.bool_]] = field(default_factory=list)

    def add(self, first: Tensor, second: Tensor, targets: Tensor) -> None:
        """Logits float32[n, vocabulary] of both sides, and the ids int64[n] that came next."""
        a, b = F.log_softmax(first, -1), F.log_softmax(second, -1)
        weights = a.exp()
        own = torch.stack([side.gather(1, targets[:, None])[:, 0] for side in (a, b)])
        # where A is 0 both factors may be infinite, and the product counts for nothing
        divergence = torch.where(weights > 0, weights * (a - b), 0.0).double().sum(1)
        best = first.argmax(1)
        self.losses.append(-own.double().cpu().numpy())
        self.divergences.append(divergence.cpu().numpy())
        self.cosines.append(F.cosine_similarity(first, second).double().cpu().numpy())
        self.agree.append((best == second.argmax(1)).cpu().numpy())
        self.sure.append((weights.gather(1, best[:, None])[:, 0] >= SURE).cpu().numpy())

    def figures(self) -> Figures:
        """What everything added comes to."""
        losses = np.concatenate(self.losses, axis=1)
        divergences, cosines = np.concatenate(self.divergences), np.concatenate(self.cosines)
        agree, sure = np.concatenate(self.agree), np.concatenate(self.sure)
        n = losses.shape[1]
        means = losses.mean(1)
        differences = losses[1] - losses[0]
        ratio = math.exp(differences.mean())
        spread = float(differences.std(ddof=1)) if n > 1 else math.inf
        return Figures(
            positions=n,
            perplexity=(math.exp(means[0]), math.exp(means[1])),
            perplexity_increase=ratio - 1,
            perplexity_increase_error=_TWO_SIDED_95 * ratio * spread / math.sqrt(n),
            kl_mean=float(divergences.mean()),
            kl_99th=float(np.quantile(divergences, 0.99)),
            cosine_mean=float(cosines.mean()),
            cosine_least=float(cosines.min()),
            top1_agreement=float(agree.mean()),
            top1_interval=_wilson(int(agree.sum()), n),
            sure_positions=int(sure.sum()),
            sure_agreement=float(agree[sure].mean()) if sure.any() else None,
        )


def _wilson(hits: int, n: int) -> tuple[float, float]:
    z, share = _TWO_SIDED_95, hits / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)
