"""What a scheduler asks for in a step and what it is told: plain arrays, free of protobuf."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hundredfold_worker.failures import RequestFailure
from hundredfold_worker.sampling.candidates import Candidates
from hundredfold_worker.sampling.params import SamplingParams
from hundredfold_worker.sampling.scores import TokenScores

Ints = NDArray[np.int64]

_NONE: Ints = np.zeros(0, dtype=np.int64)
_NONE.flags.writeable = False


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence that takes a slot."""

    slot: int
    sequence_id: int
    """The scheduler's number for it, for logs."""
    prompt: Ints
    """int64[p]."""
    params: SamplingParams
    output: Ints = field(default_factory=lambda: _NONE)
    """int64[o], ids that exist already."""
    block_ids: Ints = field(default_factory=lambda: _NONE)
    """int64[b], its block table so far."""
    num_computed: int = 0
    """Leading tokens whose keys and values the blocks hold already."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A slot's sequence becomes that of a beam, with one more token."""

    slot: int
    source_slot: int
    token_id: int
    kept_blocks: int
    """Leading blocks of the source's table that it shares."""
    block_ids: Ints
    """int64[b], the blocks after them."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step, applied in the order of its fields; the meaning of each is that of the internal protocol."""

    step: int
    released_slots: Ints = field(default_factory=lambda: _NONE)
    new_sequences: tuple[NewSequence, ...] = ()
    branches: tuple[Branch, ...] = ()
    grown_slots: Ints = field(default_factory=lambda: _NONE)
    grown_counts: Ints = field(default_factory=lambda: _NONE)
    grown_block_ids: Ints = field(default_factory=lambda: _NONE)
    copy_sources: Ints = field(default_factory=lambda: _NONE)
    copy_destinations: Ints = field(default_factory=lambda: _NONE)
    slots: Ints = field(default_factory=lambda: _NONE)
    num_tokens: Ints = field(default_factory=lambda: _NONE)
    num_draft_tokens: Ints = field(default_factory=lambda: _NONE)
    num_repeats: int = 0


@enum.unique
class EndReason(enum.Enum):
    """Why a sequence ended by itself."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class RowEnd:
    """A row's sequence ended with its last id."""

    row: int
    reason: EndReason
    stop_token_id: int | None = None


@dataclass(frozen=True, slots=True)
class RowFailure:
    """A row's sequence cannot go on."""

    row: int
    failure: RequestFailure


@dataclass(frozen=True, slots=True)
class RowScores:
    """Scores of consecutive tokens of a row's sequence."""

    row: int
    position: int
    """Of the first token, among prompt and output together."""
    scores: TokenScores


@dataclass(frozen=True, slots=True)
class RowCandidates:
    """What may follow a row's beam."""

    row: int
    candidates: Candidates


@dataclass(frozen=True, slots=True)
class StepResult:
    """The answer to a plan; its rows are the plan's rows."""

    step: int
    num_computed: Ints
    """int64[rows]: leading tokens whose keys and values are final."""
    num_outputs: Ints
    """int64[rows]: new output ids."""
    token_ids: Ints
    """int64[sum of num_outputs], row by row."""
    num_drafted: Ints = field(default_factory=lambda: _NONE)
    """int64[rows]: draft tokens tried; empty when none were."""
    num_repeats: int = 0
    """Passes that followed the first."""
    ends: tuple[RowEnd, ...] = ()
    failures: tuple[RowFailure, ...] = ()
    scores: tuple[RowScores, ...] = ()
    candidates: tuple[RowCandidates, ...] = ()
    step_us: int = 0
    idle_us: int = 0

    @property
    def num_accepted(self) -> int:
        """Drafts that were right: ids beyond one of each pass, of the rows that tried some in the last."""
        if not len(self.num_drafted):
            return 0
        beyond = self.num_outputs[self.num_drafted > 0] - self.num_repeats - 1
        return int(np.maximum(beyond, 0).sum())
