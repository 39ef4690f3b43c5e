"""A loaded model without weights: logits are a hash of every id that the cache holds for a sequence.

One wrong place, block table, length or position changes every logit after it, so ids tell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from hundredfold.plugin import AttentionBatch
from hundredfold_worker.model import PagedCache, RuntimeReport, Selection, nothing
from hundredfold_worker.model.description import (
    AttentionDescription,
    LayerDescription,
    MlpDescription,
    ModelDescription,
)
from hundredfold_worker.sampling.noise import bits, spread

_WEIGHTS = np.random.default_rng(99).integers(1, 2**63, size=1 << 16, dtype=np.uint64) | np.uint64(1)


@dataclass
class ToyLayer:
    """One value per token: its id plus one, minus one where nothing was written."""

    values: Tensor
    block_size: int

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def copy_blocks(self, source: Tensor, destination: Tensor) -> None:
        blocks = self.values.view(-1, self.block_size)
        blocks[destination] = blocks[source].clone()


@dataclass
class ToyPlanner:
    block_size: int

    def bytes_per_block(self) -> int:
        return 8 * self.block_size

    def allocate(self, num_blocks: int) -> PagedCache:
        values = torch.full((num_blocks * self.block_size,), -1, dtype=torch.int64)
        return PagedCache((ToyLayer(values, self.block_size),), num_blocks, self.block_size)


@dataclass
class ToyModel:
    """Logits in [-6, 6) from a hash of the prefix. ``tamper`` may change a step's logits or raise."""

    vocab_size: int = 64
    max_model_len: int = 256
    block_size: int = 16
    tamper: Callable[[Tensor, Tensor], None] | None = None
    """Called with a step's token ids and its logits."""
    strict: bool = True
    """Whether reading what was never written, or writing a place twice, fails the step."""
    forwards: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32

    @property
    def weight_bytes(self) -> int:
        return 0

    @property
    def cache_planner(self) -> ToyPlanner:
        return ToyPlanner(self.block_size)

    @property
    def description(self) -> ModelDescription:
        layer = LayerDescription(AttentionDescription(1, 1, 8, 1.0, rotary=None), MlpDescription(8))
        length = self.max_model_len
        return ModelDescription("Toy", self.vocab_size, 8, 1e-5, (layer,), True, length, longest=length)

    @property
    def runtime(self) -> RuntimeReport:
        return RuntimeReport("cpu", "fp32", (Selection("attention", "toy", "the only one"),), 0, 0, 1)

    def drawer(self, spread_ids: np.ndarray) -> None:
        """Draws in plain torch."""

    def logits_after(self, ids: list[int]) -> np.ndarray:
        """float32[V]: what a sequence that ends with ``ids`` gets."""
        held = np.array(ids, dtype=np.uint64) + np.uint64(1)
        return self._logits((held * _WEIGHTS[: len(ids)]).sum(keepdims=True))[0]

    def _logits(self, states: np.ndarray) -> np.ndarray:
        low, high = states & np.uint64(0xFFFFFFFF), states >> np.uint64(32)
        keys = np.stack([low, high], axis=1).astype(np.uint32)
        hashed = bits(keys[:, :1], keys[:, 1:], spread(np.arange(self.vocab_size))[None, :])
        return (hashed.astype(np.float64) * (12 / 2**32) - 6).astype(np.float32)

    def forward(
        self,
        token_ids: Tensor,
        batch: AttentionBatch,
        cache: PagedCache,
        logits_at: Tensor,
        before_kernels: Callable[[], None] = nothing,
    ) -> Tensor:
        before_kernels()
        self.forwards += 1
        layer = cache.layers[0]
        assert isinstance(layer, ToyLayer)
        assert token_ids.dtype == batch.slot_mapping.dtype == batch.positions.dtype == torch.int64
        assert batch.block_tables.dtype == torch.int32
        assert len(token_ids) == sum(batch.query_lens)
        assert not self.strict or len(set(batch.slot_mapping.tolist())) == len(token_ids)
        layer.values[batch.slot_mapping] = token_ids + 1
        blocks = layer.values.view(-1, cache.block_size)
        states = []
        start = 0
        for row, (queries, length) in enumerate(zip(batch.query_lens, batch.seq_lens, strict=True)):
            positions = batch.positions[start : start + queries].tolist()
            assert positions == list(range(length - queries, length))
            start += queries
            held = blocks[batch.block_tables[row].long()].flatten()[:length].numpy()
            assert not self.strict or (held > 0).all(), "a token was read before it was written"
            states.append(np.cumsum(held.astype(np.uint64) * _WEIGHTS[:length])[positions])
        wanted = np.concatenate(states)[logits_at.numpy()] if len(logits_at) else np.zeros(0, dtype=np.uint64)
        logits = torch.from_numpy(self._logits(wanted))
        if self.tamper is not None:
            self.tamper(token_ids, logits)
        return logits
