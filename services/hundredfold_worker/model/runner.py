"""Runs a decoder: captured where its plugins can be, else operation by operation; then caps the logits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hundredfold.plugin import AttentionBatch
from hundredfold_worker.floats import FloatRoom
from hundredfold_worker.model.captured import Captured, can_capture, capture
from hundredfold_worker.model.decoder import Decoder
from hundredfold_worker.model.loaded import PagedCache, nothing


class Runner:
    """Captures anew when the cache is another or a step is larger than any before."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._can_capture = can_capture(decoder)
        self._captured: Captured | None = None
        self._capped = FloatRoom()

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Tensor,
        batch: AttentionBatch,
        cache: PagedCache,
        logits_at: Tensor,
        before_kernels: Callable[[], None] = nothing,
    ) -> Tensor:
        """See ``LoadedModel.forward``."""
        decoder = self._decoder
        captured = self._program(cache, len(token_ids), len(logits_at)) if self._can_capture else None
        if captured is None:
            before_kernels()
            logits = decoder.forward(token_ids, batch, cache, logits_at)
        else:
            logits = captured.forward(decoder, token_ids, batch, logits_at, before_kernels)
        if decoder.logit_softcap is None:
            return logits
        logits = self._capped.floats(logits)
        return logits.div_(decoder.logit_softcap).tanh_().mul_(decoder.logit_softcap)

    def _program(self, cache: PagedCache, rows: int, logit_rows: int) -> Captured | None:
        captured = self._captured
        if captured is not None and captured.takes(cache, rows, logit_rows):
            return captured
        if captured is not None:
            rows, logit_rows = max(rows, captured.rows), max(logit_rows, captured.logit_rows)
            captured = self._captured = None  # its buffers go before the new ones come
        self._captured = capture(self._decoder, cache, rows, logit_rows)
        self._can_capture = self._captured is not None
        return self._captured
