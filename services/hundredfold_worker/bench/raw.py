"""The bare loop that the engine is measured against: the same forwards in the same order, and an argmax."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hundredfold.plugin import AttentionBatch
from hundredfold_worker.model import LoadedModel, PagedCache, nothing

Batch = tuple[Tensor, AttentionBatch, PagedCache, Tensor]


@dataclass(slots=True)
class RecordingModel:
    """A model that remembers the batches it was given while ``recording``. All else is the model's."""

    model: LoadedModel
    recording: bool = False
    batches: list[Batch] = field(default_factory=list)

    def forward(
        self,
        token_ids: Tensor,
        batch: AttentionBatch,
        cache: PagedCache,
        logits_at: Tensor,
        before_kernels: Callable[[], None] = nothing,
    ) -> Tensor:
        """See ``LoadedModel``."""
        if self.recording:
            self.batches.append((token_ids, batch, cache, logits_at))
        return self.model.forward(token_ids, batch, cache, logits_at, before_kernels)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


def replay(recorded: RecordingModel) -> float:
    """Seconds that the recorded batches take with nothing around them."""
    model = recorded.model
    begun = time.perf_counter()
    with torch.inference_mode():
        for token_ids, batch, cache, logits_at in recorded.batches:
            logits = model.forward(token_ids, batch, cache, logits_at)
            if not len(logits):
                continue
            if model.device.type == "cpu":
                logits.float().numpy().argmax(axis=1)  # faster than torch's
            else:
                logits.argmax(dim=1).cpu()
    return time.perf_counter() - begun
