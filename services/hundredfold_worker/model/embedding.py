"""The embedding table: rows looked up in the form that the checkpoint has, dequantized as they are read."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from hundredfold.plugin import CanonicalWeight, ChannelInt8Weight, DenseWeight, GroupedIntWeight
from hundredfold.plugin.dequantize import dequantize


@dataclass(frozen=True, slots=True)
class Embedding:
    """One row for each token id."""

    weight: DenseWeight | GroupedIntWeight | ChannelInt8Weight
    """[vocabulary, hidden], without input transform."""
    dtype: torch.dtype

    def __call__(self, token_ids: Tensor) -> Tensor:
        """``token_ids`` int64[T] to [T, hidden] in the compute type."""
        rows = {name: table.index_select(0, token_ids) for name, table in _tables(self.weight).items()}
        changes: dict[str, Any] = rows
        return dequantize(replace(self.weight, **changes), self.dtype)

    def __len__(self) -> int:
        return len(next(iter(_tables(self.weight).values())))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What rows are looked up in."""
        return tuple(_tables(self.weight).values())

    @property
    def nbytes(self) -> int:
        """Bytes of the table as it lies in memory."""
        return sum(table.nbytes for table in _tables(self.weight).values())


def make_embedding(weight: CanonicalWeight, dtype: torch.dtype) -> Embedding:
    """Keep integers whose rows stand for themselves, dequantize the rest."""
    if isinstance(weight, (GroupedIntWeight, ChannelInt8Weight)):
        return Embedding(weight, dtype)
    return Embedding(DenseWeight(dequantize(weight, dtype)), dtype)


def _tables(weight: CanonicalWeight) -> dict[str, Tensor]:
    parts = {field.name: getattr(weight, field.name) for field in fields(weight)}
    return {name: part for name, part in parts.items() if isinstance(part, Tensor)}
