"""Long windows side by side, their last tokens one at a time, as a server draws: what differs, how fast."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hundredfold.plugin import AttentionBatch
from hundredfold_worker.model import LoadedModel, PagedCache

WARM_STEPS = 2
"""Steps that are not timed: buffers are made in them."""


@dataclass(frozen=True, slots=True)
class DecodeSpeed:
    """How fast both sides drew."""

    rows: int
    context: int
    """Tokens of a window."""
    tokens_per_second: tuple[float, float]
    """Of all rows together, from the median step; A and B."""


class DecodingRows:
    """One side: its model, and a cache that holds every window, its own unless it is given another's."""

    def __init__(
        self,
        model: LoadedModel,
        block_size: int,
        windows: Sequence[tuple[int, ...]],
        cache: PagedCache | None = None,
    ) -> None:
        self._model = model
        self._block_size = block_size
        self._ids = torch.tensor(windows)
        per_row = -(-self._ids.shape[1] // block_size)
        self._blocks = torch.arange(len(windows) * per_row).view(len(windows), per_row)
        self.cache = model.cache_planner.allocate(self._blocks.numel()) if cache is None else cache

    def read_prompts(self, length: int, chunk: int) -> Iterator[int]:
        """Compute the first ``length`` tokens of every window; gives how many are done after each chunk."""
        for row in range(len(self._ids)):
            for done in self.read_prompt(row, length, chunk):
                yield row * length + done

    def read_prompt(self, row: int, length: int, chunk: int) -> Iterator[int]:
        """The same of one window."""
        none = torch.arange(0, device=self._model.device)
        for first in range(0, length, chunk):
            positions = torch.arange(first, min(first + chunk, length))
            self._forward(torch.tensor([row]), positions, [length], none)
            yield first + len(positions)

    def copy_row(self, source: int, target: int) -> None:
        """Have a row's blocks hold what those of another one do."""
        device = self._model.device
        self.cache.copy_blocks(self._blocks[source].to(device), self._blocks[target].to(device))

    def steps(self, first: int, count: int) -> Iterator[tuple[Tensor, float]]:
        """Logits float32[rows, vocabulary] of the windows' tokens at ``first`` and on, and each step's
        seconds. Valid until the next.
        """
        rows = torch.arange(len(self._ids))
        every = torch.arange(len(self._ids), device=self._model.device)
        for position in range(first, first + count):
            begun = time.perf_counter()
            logits = self._forward(rows, torch.tensor([position]), [first] * len(rows), every)
            logits.argmax(1).cpu()  # done only then where a device computes
            yield logits, time.perf_counter() - begun

    def _forward(self, rows: Tensor, positions: Tensor, prompts: list[int], logits_at: Tensor) -> Tensor:
        device, size, count = self._model.device, self._block_size, len(positions)
        tables = self._blocks[rows]
        slots = tables[:, positions // size] * size + positions % size
        batch = AttentionBatch(
            query_lens=[count] * len(rows),
            seq_lens=[int(positions[-1]) + 1] * len(rows),
            block_tables=tables.to(device, torch.int32),
            slot_mapping=slots.flatten().to(device),
            positions=positions.repeat(len(rows)).to(device),
            prompt_lens=prompts,
        )
        ids = self._ids[rows][:, positions].flatten().to(device)
        return self._model.forward(ids, batch, self.cache, logits_at).float()


def tokens_per_second(rows: int, seconds: Sequence[float]) -> float:
    """From the median of the steps that count."""
    return rows / statistics.median(seconds[WARM_STEPS:] or seconds)
