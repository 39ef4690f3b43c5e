"""Fills caches with bytes that are NaN as any float: what reads them shows it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import torch
from torch import Tensor

from hundredfold.plugin import LayerCache


def poison(cache: LayerCache) -> None:
    """Every tensor of a layer's cache, whatever the backend. Raises ``ValueError`` when there is none."""
    tensors = list(_tensors(cache))
    if not tensors:
        raise ValueError(f"{type(cache).__name__} has no tensors that can be found")
    for tensor in tensors:
        tensor.view(torch.uint8).fill_(255)


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value):
        for part in fields(value):
            yield from _tensors(getattr(value, part.name))
