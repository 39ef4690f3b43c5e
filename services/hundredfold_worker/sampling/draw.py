"""The contract of a draw, and its plain form in torch: the oracle on any device, and the one used on CUDA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hundredfold_worker.sampling.noise import bits_tensor, exponential_tensor, spread

_MAX_ELEMENTS = 4 * 1024 * 1024
"""Logits that are sorted at a time; about 64 bytes of memory each."""


@dataclass(frozen=True, slots=True)
class DrawRows:
    """What is drawn: n rows of the logits, with each row's own parameters."""

    rows: NDArray[np.intp]
    """int[n], rows of the logits."""
    limits: NDArray[np.int64]
    """int64[n]; columns from here on do not exist."""
    top_ids: NDArray[np.int64]
    """int64[n], the likeliest token of each row."""
    top_values: NDArray[np.float32]
    """float32[n], its logit, finite."""
    temperature: NDArray[np.float32]
    """float32[n], over 0."""
    top_k: NDArray[np.int64]
    """int64[n], at least 1."""
    top_p: NDArray[np.float64]
    """float64[n], in (0, 1]."""
    min_p: NDArray[np.float64]
    """float64[n], from 0 to 1."""
    keys: NDArray[np.uint32]
    """uint32[n, 2], of the noise."""


class Drawer(Protocol):
    """Picks tokens from float32[R, V] logits. A row's result does not depend on other rows."""

    def likeliest(
        self, logits: Tensor, rows: NDArray[np.intp], limits: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Id and logit of each row's likeliest token, the lowest id among equals; a NaN wins."""

    def draw(self, logits: Tensor, wanted: DrawRows) -> NDArray[np.int64]:
        """A token for each row of ``wanted``, int64[n]: of those that survive top_k, then top_p over the
        probabilities of what is left, then min_p, the one with the least noise per weight.
        """


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
        return ids[:, 0].cpu().numpy(), picked.gather(1, ids)[:, 0].cpu().numpy()

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
