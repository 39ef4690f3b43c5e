"""Scores of tokens under the model's own distribution: log probability, rank, and the likeliest rivals."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hundredfold_worker.sampling.host_logprobs import score_rows
from hundredfold_worker.sampling.scores import LEAST_LOGPROB, TokenScores

_MAX_ELEMENTS = 4 * 1024 * 1024
"""Logits scored at a time; about 12 bytes of memory each."""


def score_tokens(
    logits: Tensor, rows: NDArray[np.int64], targets: NDArray[np.int64], limit: int, width: int
) -> TokenScores:
    """Score ``targets`` int64[n] at ``rows`` int64[n] of float32[R, V] logits; ``limit`` columns count.

    ``width`` rivals are listed, fewer where the vocabulary is smaller. Rows do not influence each other.
    """
    width = min(width, limit)
    if logits.device.type == "cpu":
        return score_rows(logits.numpy(), rows, targets, limit, width)
    return score_tensor(logits, rows, targets, limit, width)


def score_tensor(
    logits: Tensor, rows: NDArray[np.int64], targets: NDArray[np.int64], limit: int, width: int
) -> TokenScores:
    """The plain form in torch: the oracle on any device, and the one used on CUDA."""
    step = max(1, _MAX_ELEMENTS // limit)
    parts = [
        _score(logits, rows[start : start + step], targets[start : start + step], limit, width)
        for start in range(0, len(rows), step)
    ]
    return TokenScores(
        np.concatenate([part.logprobs for part in parts]),
        np.concatenate([part.ranks for part in parts]),
        np.concatenate([part.top_ids for part in parts]),
        np.concatenate([part.top_logprobs for part in parts]),
    )


def _score(
    logits: Tensor, rows: NDArray[np.int64], targets: NDArray[np.int64], limit: int, width: int
) -> TokenScores:
    picked = logits[torch.from_numpy(rows).to(logits.device), :limit]
    inside = targets < limit  # a prompt may hold an id that the tokenizer does not know
    wanted = torch.from_numpy(np.where(inside, targets, 0)).to(logits.device)[:, None]
    target = picked.gather(1, wanted)
    logprobs = picked.log_softmax(dim=1)
    order = torch.arange(limit, device=logits.device)[None, :]
    better = (picked > target) | ((picked == target) & (order < wanted))
    ranks = better.sum(dim=1) + 1
    top_ids = likeliest(picked, width)
    chosen = _plain(logprobs.gather(1, wanted)[:, 0])
    return TokenScores(
        np.where(inside, chosen, np.float32(LEAST_LOGPROB)),
        np.where(inside, ranks.cpu().numpy(), limit + 1),
        top_ids.cpu().numpy(),
        _plain(logprobs.gather(1, top_ids)),
    )


def likeliest(picked: Tensor, width: int) -> Tensor:
    """Ids of the ``width`` likeliest columns, best first, lower ids first among equals: int64[n, width]."""
    if width == 0:
        return torch.empty((picked.shape[0], 0), dtype=torch.int64, device=picked.device)
    values, ids = picked.topk(width, dim=1)
    edge = values[:, -1:]
    ambiguous = (picked == edge).sum(dim=1) != (values == edge).sum(dim=1)
    for row in ambiguous.nonzero()[:, 0].tolist():
        order = picked[row].sort(descending=True, stable=True)
        values[row], ids[row] = order.values[:width], order.indices[:width]
    ids, by_id = ids.sort(dim=1)
    values, by_value = values.gather(1, by_id).sort(dim=1, descending=True, stable=True)
    return ids.gather(1, by_value)


def _plain(logprobs: Tensor) -> NDArray[np.float32]:
    finite: NDArray[np.float32] = logprobs.clamp(min=LEAST_LOGPROB).cpu().numpy()
    return finite
