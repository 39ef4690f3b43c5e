"""Runs rows through a loaded model in chunks, as an engine would, over a cache poisoned with NaN."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hundredfold.models import resolve
from hundredfold.plugin import AttentionBatch
from hundredfold.plugin.registry import Registry, all_registries
from hundredfold_worker.model import LoadedModel, LoadOptions, load_model
from support.poison import poison

Row = tuple[Sequence[int], Sequence[int]]
"""Token ids, and how many of them each step computes; the numbers add up to all ids."""


def load(path: Path | str, **options: Any) -> LoadedModel:
    """Load a checkpoint with the installed plugins, on one thread."""
    options = {"dtype": "fp32", "device": "cpu", "num_threads": 1, **options}
    return load_model(resolve(str(path)), LoadOptions(**options), _plugins())


@cache
def _plugins() -> dict[str, Registry]:
    """Found once: that takes longer than loading a tiny model."""
    return all_registries()


def run_rows(model: LoadedModel, rows: Sequence[Row], block_size: int = 16) -> list[Tensor]:
    """Each row's logits at every position, float32[ids, vocabulary]; rows share steps while they last."""
    sizes = [-(-len(ids) // block_size) for ids, _ in rows]
    cache = model.cache_planner.allocate(sum(sizes) + 1)
    for layer in cache.layers:
        poison(layer)
    device = model.device
    shuffled = torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(3)).split(sizes)
    unused = torch.tensor([sum(sizes)])
    tables = [torch.cat((own, unused.expand(max(sizes) - len(own)))).int() for own in shuffled]
    done = [0] * len(rows)
    found: list[list[Tensor]] = [[] for _ in rows]
    for step in range(max(len(chunks) for _, chunks in rows)):
        live = [row for row, (_, chunks) in enumerate(rows) if step < len(chunks)]
        counts = [rows[row][1][step] for row in live]
        ids: list[int] = []
        positions, slots = [], []
        for row, count in zip(live, counts, strict=True):
            own = torch.arange(done[row], done[row] + count)
            ids += rows[row][0][done[row] : done[row] + count]
            positions.append(own)
            slots.append(tables[row][own // block_size].long() * block_size + own % block_size)
            done[row] += count
        batch = AttentionBatch(
            query_lens=counts,
            seq_lens=[done[row] for row in live],
            block_tables=torch.stack([tables[row] for row in live]).to(device),
            slot_mapping=torch.cat(slots).to(device),
            positions=torch.cat(positions).to(device),
        )
        everywhere = torch.arange(len(ids), device=device)
        logits = model.forward(torch.tensor(ids, device=device), batch, cache, everywhere)
        for row, part in zip(live, logits.split(counts), strict=True):
            found[row].append(part.to(torch.float32, copy=True))
    return [torch.cat(parts) for parts in found]


def one_prefill(model: LoadedModel, ids: Sequence[int]) -> Tensor:
    """One row in one step."""
    return run_rows(model, [(ids, [len(ids)])])[0]
