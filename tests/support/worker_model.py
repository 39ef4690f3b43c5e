"""Runs the worker's model half directly, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from hundredfold_worker.model import LoadedModel

BLOCK_SIZE = 16


def load_default(path: str, dtype: str) -> LoadedModel:
    """Load a model by path with what ``auto`` chooses, in ``dtype``."""
    from hundredfold.models import resolve
    from hundredfold.plugin.registry import all_registries
    from hundredfold_worker.model import LoadOptions, load_model

    options = LoadOptions(dtype=dtype, block_size=BLOCK_SIZE, max_model_len=1024)
    return load_model(resolve(path), options, all_registries())


def full_logits(model: LoadedModel, ids: Sequence[int]) -> Tensor:
    """float32[len(ids), vocabulary] of one sequence in one prefill."""
    import torch

    from hundredfold.plugin import AttentionBatch

    count = len(ids)
    num_blocks = -(-count // BLOCK_SIZE)
    positions = torch.arange(count, device=model.device)
    batch = AttentionBatch(
        query_lens=[count],
        seq_lens=[count],
        block_tables=torch.arange(num_blocks, dtype=torch.int32, device=model.device)[None, :],
        slot_mapping=positions,
        positions=positions,
    )
    cache = model.cache_planner.allocate(num_blocks)
    with torch.inference_mode():
        return model.forward(torch.tensor(list(ids), device=model.device), batch, cache, positions).float()
