"""Numbers of a narrower type as float32, in memory that stays."""

from __future__ import annotations

import torch
from torch import Tensor


class FloatRoom:
    """Room for one float32 copy at a time."""

    def __init__(self) -> None:
        self._room = torch.empty(0)

    def floats(self, x: Tensor, rows: slice = slice(None)) -> Tensor:
        """``x`` [R, n] itself where it is float32, else a copy, valid until the next call, of which ``rows``
        alone have meaning.
        """
        if x.dtype == torch.float32:
            return x
        if self._room.numel() < x.numel() or self._room.device != x.device:
            self._room = torch.empty(0)  # the old one goes before the new one comes
            self._room = torch.empty(x.numel(), device=x.device)
        copy = self._room[: x.numel()].view(x.shape)
        copy[rows].copy_(x[rows])
        return copy
