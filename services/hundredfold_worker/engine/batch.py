"""The flat batch of a step: ids, positions and cache places of all rows, gathered from the slots at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hundredfold.plugin import AttentionBatch
from hundredfold_worker.engine.plan import Ints
from hundredfold_worker.engine.slots import SlotTable


@dataclass(frozen=True, slots=True)
class FlatBatch:
    """A step's input."""

    token_ids: Tensor
    """int64[T]."""
    attention: AttentionBatch
    starts: Ints
    """int64[rows], where each row begins in the flat arrays."""


def build_batch(table: SlotTable, slots: Ints, takes: Ints, device: torch.device) -> FlatBatch:
    """Rows that compute the next ``takes`` int64[n] known tokens of ``slots`` int64[n]."""
    block_size = table.limits.block_size
    ends = np.cumsum(takes)
    starts = ends - takes
    owners = np.repeat(slots, takes)
    first = table.computed[slots]
    positions = np.arange(len(owners)) + np.repeat(first - starts, takes)
    places = table.blocks[owners, positions // block_size].astype(np.int64)
    places *= block_size
    places += positions % block_size
    seq_lens = first + takes
    width = -(-int(seq_lens.max()) // block_size)
    return FlatBatch(
        token_ids=send(table.ids[owners, positions].astype(np.int64), device),
        attention=AttentionBatch(
            query_lens=takes.tolist(),
            seq_lens=seq_lens.tolist(),
            block_tables=send(_tables(table, slots, first, width), device),
            slot_mapping=send(places, device),
            positions=send(positions, device),
            prompt_lens=table.prompt_len[slots].tolist(),
        ),
        starts=starts,
    )


def _tables(table: SlotTable, slots: Ints, first: Ints, width: int) -> NDArray[np.int32]:
    """int32[n, width], the block tables of rows whose computation begins at ``first`` int64[n].

    Where every layer has a window, the blocks before it may be another sequence's by now. A backend masks
    what it reads there, but a mask does not hold back a NaN: the first block that is seen stands in for them.
    """
    blocks = table.blocks[slots, :width]
    window = table.limits.sliding_window
    if window is not None:
        seen = np.maximum(first - window + 1, 0) // table.limits.block_size
        own = blocks[np.arange(len(blocks)), seen]
        blocks = np.where(np.arange(width) < seen[:, None], own[:, None], blocks)
    return blocks


def send(values: NDArray[Any], device: torch.device) -> Tensor:
    """A host array as a tensor on ``device``; shares memory on a CPU."""
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.to(device)
