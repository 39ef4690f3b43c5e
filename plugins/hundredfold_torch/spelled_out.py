"""The parts of attention that both kinds of rows share, spelled out in float32.

In float32 on CPU a query's result has the same bits whether its row is a prompt, a piece of one or a decode
step, and whatever rows are beside it: chunking, preemption and replay then change no token. That rests on
three things which tests hold: products of at least ``LEAST_QUERIES`` rows give a row the same bits; hidden
keys weigh exactly 0 and add nothing; values are summed ``RUN`` keys at a time, in order, by a product as by
a bag.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hundredfold.plugin import AttentionSpec

LEAST_QUERIES = 4
"""Fewer rows than this take another path through the matrix library, with another order of additions."""

RUN = 128
"""Keys summed in one go; the matrix library sums this many in order, as a bag does, but not 256."""


def weights_of(layer: AttentionSpec, scores: Tensor, hidden: Tensor) -> Tensor:
    """Scores float32[..., heads, queries, keys] to weights; ``scores`` is used up.

    ``hidden`` bool, broadcast over heads: keys that a query does not see, whatever their score, NaN included.
    """
    if layer.softcap is not None:
        scores.div_(layer.softcap).tanh_().mul_(layer.softcap)
    scores.masked_fill_(hidden, float("-inf"))
    weights = torch.softmax(scores, -1)
    if layer.sinks is not None:
        # softmax over the keys and one score more = softmax over the keys, times the share that is theirs
        weights.mul_(torch.sigmoid(scores.logsumexp(-1, keepdim=True) - layer.sinks.float()[:, None, None]))
    return weights


def hidden_keys(positions: Tensor, num_keys: int, sliding_window: int | None) -> Tensor:
    """bool[..., queries, keys]: what queries at ``positions`` int64[..., queries] do not see."""
    distance = positions[..., None] - torch.arange(num_keys, device=positions.device)
    hidden = distance < 0
    return hidden if sliding_window is None else hidden | (distance >= sliding_window)


def sum_values(weights: Tensor, values: Tensor) -> Tensor:
    """``weights`` [batch, queries, keys] times ``values`` [batch, keys, head_dim], run by run."""
    total = torch.bmm(weights[:, :, :RUN], values[:, :RUN])
    for first in range(RUN, weights.shape[-1], RUN):
        run = slice(first, first + RUN)
        total.baddbmm_(weights[:, :, run], values[:, run])
    return total
