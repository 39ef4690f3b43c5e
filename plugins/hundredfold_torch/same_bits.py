"""How this machine's matrix library has to be called for a row to have the same bits in any company.

In float32 on CPU a query's result shall not depend on whether its row is a prompt, a piece of one or a decode
step, nor on the rows beside it: then chunking, preemption and replay change no token. Matrix libraries treat
small products in other ways than large ones; what is small differs by processor, so it is found by trying.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from hundredfold.plugin import Encoding
from hundredfold_torch.paged_cache import Part
from hundredfold_torch.spelled_out import RUN, run_offsets, scores_of, sum_bags, sum_values

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 20, 24, 27, 31, 32, 33, 40)
LEAST = (1, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class SameBits:
    """What to keep to."""

    least_rows: int
    """Products of at least this many rows give a row the same bits; smaller ones are padded."""
    bags: bool
    """Whether embedding bags may sum values: they add in the order of the products, or bits do not count."""


FREE = SameBits(least_rows=1, bags=True)
"""Where the same bits are not promised."""


def same_bits_for(activations: Tensor, stored: Part) -> SameBits:
    """What a layer has to keep to: promised is float32 on CPU over a cache that is read as float32."""
    read_as_float32 = stored.encoding is Encoding.FP32 or stored.scales is not None
    if activations.device.type == "cpu" and activations.dtype == torch.float32 and read_as_float32:
        return same_bits(stored.head_dim)
    return FREE


@cache
def same_bits(head_dim: int) -> SameBits:
    """Try products with heads of this size. Where no padding helps, nothing is padded nor promised."""
    random = torch.Generator().manual_seed(head_dim)
    num_keys = 2 * RUN + 16
    queries = torch.randn(3, ROWS[-1], head_dim, generator=random)
    keys, values = (torch.randn(3, num_keys, head_dim, generator=random) for _ in range(2))
    for least in LEAST:
        rows = [count for count in ROWS if count >= least]
        if _scores_hold(queries, keys, rows) and _sums_hold(queries, keys, values, rows):
            return SameBits(least, _bags_hold(queries, keys, values, least))
    return FREE


def _scores_hold(queries: Tensor, keys: Tensor, rows: list[int]) -> bool:
    whole = scores_of(queries, keys, 1)
    return all(
        torch.equal(scores_of(queries[:, :count].contiguous(), keys[:, :seen], 1), whole[:, :count, :seen])
        for count in rows
        for seen in (16, 48, RUN, RUN + 16, keys.shape[1])
    )


def _sums_hold(queries: Tensor, keys: Tensor, values: Tensor, rows: list[int]) -> bool:
    """Fewer rows, and more keys that weigh nothing, change no bit."""
    for seen in (16, 48, RUN, RUN + 16):
        weights = _weights(queries, keys, seen)
        whole = sum_values(weights, values, 1)
        for count in rows:
            for length in (seen, keys.shape[1]):
                part = weights[:, :count, :length].contiguous()
                if not torch.equal(sum_values(part, values[:, :length], 1), whole[:, :count]):
                    return False
    return True


def _bags_hold(queries: Tensor, keys: Tensor, values: Tensor, least: int) -> bool:
    batch, num_keys, head_dim = values.shape
    for seen in (16, 48, RUN, RUN + 16, num_keys):
        weights = _weights(queries, keys, seen)
        num_sums = weights.shape[0] * weights.shape[1]
        indices = torch.arange(batch * num_keys).view(batch, 1, -1).expand_as(weights).flatten()
        offsets = run_offsets(num_sums, num_keys, indices.device)
        bags = sum_bags(weights.flatten(), values.reshape(-1, head_dim), indices, offsets, num_sums)
        if not torch.equal(bags.view(batch, -1, head_dim), sum_values(weights, values, least)):
            return False
    return True


def _weights(queries: Tensor, keys: Tensor, seen: int) -> Tensor:
    """Softmax over the first keys, 0 for the others."""
    scores = torch.bmm(queries, keys.transpose(1, 2)).div_(queries.shape[-1] ** 0.5)
    scores[:, :, seen:] = float("-inf")
    return torch.softmax(scores, -1)
