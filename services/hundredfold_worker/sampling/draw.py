"""Draws in plain torch: the oracle on any device, and what is used where no plugin draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hundredfold.plugin import DrawRows
from hundredfold_worker.sampling.noise import bits_tensor, exponential_tensor, spread

_MAX_ELEMENTS = 4 * 1024 * 1024
"""Logits that are sorted at a time; about 64 bytes of memory each."""


class TorchDrawer:
    """Sorts whole rows. Survivors of a tie at an edge are those with the lower ids."""

    def __init__(self) -> None:
        self._spread = torch.empty(0, dtype=torch.int64)

    def likeliest(
        self, logits: Tensor, rows: NDArray[np.intp], limits: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """See ``Drawer``."""
        picked = _pick(logits, rows, limits)
        ids = picked.argmax(dim=1, keepdim=True)
        return ids[:, 0].cpu().numpy(), picked.gather(1, ids)[:, 0].float().cpu().numpy()

    def draw(self, logits: Tensor, wanted: DrawRows) -> NDArray[np.int64]:
        """See ``Drawer``."""
        step = max(1, _MAX_ELEMENTS // logits.shape[1])
        parts = [
            self._draw(logits, wanted, slice(start, start + step))
            for start in range(0, len(wanted.rows), step)
        ]
        return np.concatenate(parts)

    def _draw(self, logits: Tensor, wanted: DrawRows, part: slice) -> NDArray[np.int64]:
        def send(values: NDArray[Any]) -> Tensor:
            return torch.from_numpy(values[part]).to(logits.device)[:, None]

        ordered, ids = _pick(logits, wanted.rows[part], wanted.limits[part]).sort(
            dim=1, descending=True, stable=True
        )
        scaled = (ordered - ordered[:, :1]).to(torch.float64) / send(wanted.temperature).to(torch.float64)
        weights = scaled.exp()
        rank = torch.arange(ids.shape[1], device=ids.device)[None, :]
        weights = weights.where(rank < send(wanted.top_k), 0.0)
        before = weights.cumsum(dim=1) - weights
        nucleus = before < send(wanted.top_p) * weights.sum(dim=1, keepdim=True)
        likely = weights >= send(wanted.min_p) * weights[:, :1]
        weights = weights.where((nucleus | (rank == 0)) & likely, 0.0)
        spread_ids = self._vocabulary(logits)[ids]
        keys = torch.from_numpy(wanted.keys[part].astype(np.int64)).to(ids.device)
        noise = exponential_tensor(bits_tensor(keys, spread_ids))
        winner = (noise / weights).argmin(dim=1, keepdim=True)
        return ids.gather(1, winner)[:, 0].cpu().numpy()

    def _vocabulary(self, logits: Tensor) -> Tensor:
        """First stage of every id's noise, int64[V], kept on the device."""
        if len(self._spread) != logits.shape[1] or self._spread.device != logits.device:
            hashed = spread(np.arange(logits.shape[1])).astype(np.int64)
            self._spread = torch.from_numpy(hashed).to(logits.device)
        return self._spread


def _pick(logits: Tensor, rows: NDArray[np.intp], limits: NDArray[np.int64]) -> Tensor:
    """A copy of the rows with what lies beyond their limits masked."""
    picked = logits[torch.from_numpy(rows.astype(np.int64)).to(logits.device)]
    if len(limits) and int(limits.min()) < logits.shape[1]:
        beyond = torch.arange(logits.shape[1])[None, :] >= torch.from_numpy(limits)[:, None]
        picked.masked_fill_(beyond.to(logits.device), -torch.inf)
    return picked
