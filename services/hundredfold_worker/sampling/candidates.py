"""What may follow a beam: the likeliest next ids and their log probabilities, instead of a draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hundredfold_worker.sampling.logprobs import likeliest

_MAX_ELEMENTS = 4 * 1024 * 1024
"""Logits turned into log probabilities at a time; about 12 bytes of memory each."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The best continuations of one row."""

    token_ids: NDArray[np.int64]
    """int64[n], best first, the lower id first among equals."""
    logprobs: NDArray[np.float32]
    """float32[n]."""


def normalize(logits: Tensor, rows: NDArray[np.intp], limits: NDArray[np.int64]) -> None:
    """Turn ``rows`` int[n] of float32[R, V] logits into log probabilities in place; of row i the first
    ``limits[i]`` columns count. Edits come after it, as a beam search adds them to log probabilities.
    """
    for limit in np.unique(limits).tolist():
        alike, step = rows[limits == limit], max(1, _MAX_ELEMENTS // limit)
        for start in range(0, len(alike), step):
            at = torch.from_numpy(alike[start : start + step].astype(np.int64)).to(logits.device)
            logits[at, :limit] = logits[at, :limit].log_softmax(dim=1)


def best(logprobs: Tensor, row: int, limit: int, width: int) -> Candidates:
    """The ``width`` likeliest ids of a row of float32[R, V], fewer where the vocabulary is smaller."""
    picked = logprobs[row : row + 1, :limit]
    ids = likeliest(picked, min(width, limit))
    return Candidates(ids[0].cpu().numpy(), picked.gather(1, ids)[0].cpu().numpy())
