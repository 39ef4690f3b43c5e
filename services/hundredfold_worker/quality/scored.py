"""A model over one sequence after the other, in chunks through its paged cache, as a server would run it."""

from __future__ import annotations

import torch
from torch import Tensor

from hundredfold.plugin import AttentionBatch
from hundredfold_worker.model import LoadedModel


class Scored:
    """One side: its model, and a cache that holds a window."""

    def __init__(self, model: LoadedModel, block_size: int, window: int) -> None:
        self.model = model
        self._block_size = block_size
        self._blocks = -(-window // block_size)
        self._cache = model.cache_planner.allocate(self._blocks)
        self._device = model.device

    def logits(self, ids: Tensor, first: int) -> Tensor:
        """Logits float32[n, vocabulary] of ``ids`` int64[n], which stand at positions ``first`` and on.

        Those before were computed by calls before; what they left in the cache is read from there. Valid
        until the next call.
        """
        count = len(ids)
        positions = torch.arange(first, first + count, device=self._device)
        batch = AttentionBatch(
            query_lens=[count],
            seq_lens=[first + count],
            block_tables=torch.arange(self._blocks, dtype=torch.int32, device=self._device)[None, :],
            slot_mapping=positions,
            positions=positions,
        )
        every = torch.arange(count, device=self._device)
        return self.model.forward(ids.to(self._device), batch, self._cache, every).float()
