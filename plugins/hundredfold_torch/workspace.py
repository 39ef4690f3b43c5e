"""Buffers that outlive a step, so that large gathers do not ask the system for fresh pages each time."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Workspace:
    """Named buffers that grow to the largest use. Content lasts until the name is asked for again."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """An uninitialised contiguous tensor."""
        size, key = math.prod(shape), (name, dtype, device)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < size:
            # outside inference mode, so that the buffer serves steps in and out of it
            with torch.inference_mode(False):
                buffer = self._buffers[key] = torch.empty(size, dtype=dtype, device=device)
        return buffer[:size].view(shape)
