"""Attention in its parts, in float32: scores, weights, sums of values. Every kind of row is made of these."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hundredfold.plugin import AttentionSpec

RUN = 128
"""Keys whose values are summed in one go; runs are added one after the other."""


def scores_of(queries: Tensor, keys: Tensor, least_rows: int) -> Tensor:
    """``queries`` [batch, rows, head_dim] times ``keys`` [batch, keys, head_dim]; contiguous.

    Fewer than ``least_rows`` rows are padded for the product.
    """
    rows = queries.shape[1]
    scores = torch.bmm(at_least(queries, least_rows), keys.transpose(1, 2))
    return scores[:, :rows].contiguous()


def weights_of(layer: AttentionSpec, scores: Tensor, hidden: Tensor) -> Tensor:
    """Scores float32[..., heads, queries, keys] to weights; ``scores`` is used up.

    ``hidden`` bool, broadcast over heads: which of the last keys a query does not see, whatever their score,
    NaN included; they weigh exactly 0. Keys before the ones it covers are seen by every query.
    """
    if layer.softcap is not None:
        scores.div_(layer.softcap).tanh_().mul_(layer.softcap)
    scores[..., scores.shape[-1] - hidden.shape[-1] :].masked_fill_(hidden, float("-inf"))
    weights = torch.softmax(scores, -1)
    if layer.sinks is not None:
        # softmax over the keys and one score more = softmax over the keys, times the share that is theirs
        weights.mul_(torch.sigmoid(scores.logsumexp(-1, keepdim=True) - layer.sinks.float()[:, None, None]))
    return weights


def hidden_keys(positions: Tensor, first: int, num_keys: int, sliding_window: int | None) -> Tensor:
    """bool[..., queries, num_keys - first]: which keys queries at ``positions`` [..., queries] do not see."""
    distance = positions[..., None] - torch.arange(first, num_keys, device=positions.device)
    hidden = distance < 0
    return hidden if sliding_window is None else hidden | (distance >= sliding_window)


def sum_values(weights: Tensor, values: Tensor, least_rows: int) -> Tensor:
    """``weights`` [batch, rows, keys] times ``values`` [batch, keys, head_dim], run by run."""
    rows = weights.shape[1]
    weights = at_least(weights, least_rows)
    total = torch.bmm(weights[:, :, :RUN], values[:, :RUN])
    for first in range(RUN, weights.shape[-1], RUN):
        run = slice(first, first + RUN)
        total.baddbmm_(weights[:, :, run], values[:, run])
    return total[:, :rows]


def sum_bags(weights: Tensor, table: Tensor, indices: Tensor, offsets: Tensor, num_sums: int) -> Tensor:
    """The same as embedding bags: the rows of ``table`` are read where they lie, none is gathered.

    ``weights`` and ``indices`` have an entry for each (sum, key), ``offsets`` the beginning of each run of
    keys and the end of all. Returns [num_sums, head_dim] in the table's type.
    """
    runs = F.embedding_bag(
        indices, table, offsets, mode="sum", per_sample_weights=weights, include_last_offset=True
    ).view(num_sums, -1, table.shape[1])
    total = runs[:, 0]
    for run in range(1, runs.shape[1]):
        total = total + runs[:, run]
    return total


def run_offsets(num_sums: int, num_keys: int, device: torch.device) -> Tensor:
    """The ``offsets`` of ``sum_bags`` when every sum has ``num_keys`` entries."""
    sums = torch.arange(0, num_sums * num_keys, num_keys, device=device)
    runs = torch.arange(0, num_keys, RUN, device=device)
    return F.pad((sums[:, None] + runs).flatten(), (0, 1), value=num_sums * num_keys)


def at_least(matrices: Tensor, rows: int) -> Tensor:
    """``matrices`` [batch, n, columns] with rows of zeros added where there are fewer."""
    missing = rows - matrices.shape[1]
    return F.pad(matrices, (0, 0, 0, missing)) if missing > 0 else matrices
