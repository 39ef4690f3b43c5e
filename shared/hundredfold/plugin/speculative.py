"""The speculation contract: propose drafts, observe what was accepted. Verification belongs to the worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hundredfold.plugin.reasons import Reasons


@dataclass(frozen=True, slots=True)
class SpeculationSpec:
    """What a strategy has to know of the target."""

    vocab_size: int
    max_model_len: int
    max_num_seqs: int
    num_speculative_tokens: int
    options: Mapping[str, str] = field(default_factory=dict)
    """What the operator tells the strategy; one that it does not know is a reason to refuse."""


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One sequence that may be drafted for."""

    slot: int
    """Stable while the sequence lives."""
    token_ids: NDArray[np.int32]
    """int32[n], prompt and output so far; the worker's own memory, not to be kept nor written."""
    max_draft_tokens: int


class Drafter(Protocol):
    """A strategy bound to a target."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        """Drafts for each request, at most its ``max_draft_tokens``; an empty list for none."""

    def observe(self, slot: int, proposed: int, accepted: int) -> None:
        """What became of the last proposal of a slot: of its first ``proposed`` tokens so many were right,
        whether the target was asked for them or only drew them by itself.
        """

    def forget(self, slot: int) -> None:
        """The slot's sequence is gone."""


class SpeculativePlugin(Protocol):
    """Group ``hundredfold.speculative``."""

    name: str
    api_version: int

    def refuses(self, spec: SpeculationSpec) -> Reasons:
        """Why the strategy cannot serve the target; empty when it can."""

    def bind(self, spec: SpeculationSpec) -> Drafter:
        """A drafter for the target."""
