"""What passes between planner and worker each step: plans down, results up, packed by row."""

from __future__ import annotations

import enum
from array import array
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field


@enum.unique
class EndReason(enum.IntEnum):
    """Why a sequence ended; the values are those of the internal protocol."""

    STOP = 1
    LENGTH = 2


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence that starts in a slot, or starts again."""

    slot: int
    sequence_id: int
    prompt: array[int]
    output: array[int]
    """Output ids that exist already."""
    block_ids: list[int]
    num_computed_tokens: int
    """Leading tokens that these blocks hold already."""
    max_tokens: int
    params: object
    """How to sample, as the door sent it; opaque here."""
    prompt_is_scored: bool
    """The prompt's scores were delivered already and need not be computed again."""
    choice_index: int
    traceparent: str
    num_candidates: int = 0
    """Not 0 for a beam: likeliest next ids that it answers with instead of a draw."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A slot's sequence becomes that of a beam, with one more token."""

    slot: int
    source_slot: int
    token_id: int
    kept_blocks: int
    """Leading blocks of the source's table that it shares."""
    block_ids: list[int]
    """The blocks after them."""


@dataclass(slots=True)
class StepPlan:
    """How far to advance which sequences; applied in the order of its fields."""

    step: int
    released_slots: list[int] = field(default_factory=list)
    new_sequences: list[NewSequence] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    """All sources are taken as they were before the first of them."""
    grown_slots: list[int] = field(default_factory=list)
    grown_counts: list[int] = field(default_factory=list)
    grown_block_ids: list[int] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    """Blocks, from and to, that are copied before anything is written."""
    slots: list[int] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    num_draft_tokens: list[int] = field(default_factory=list)
    """Empty when no row may draft."""
    num_repeats: int = 0
    """Passes that may follow the first, each with the tokens drawn in the one before."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Log probabilities of consecutive tokens of one sequence."""

    position: int
    """Of the first token, among prompt and output tokens together."""
    logprobs: Seq[float]
    ranks: Seq[int]
    width: int
    """Likeliest tokens kept per token."""
    top_token_ids: Seq[int]
    top_logprobs: Seq[float]

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.position + len(self.logprobs)

    @property
    def nbytes(self) -> int:
        """About what it takes on the wire."""
        return 8 * (len(self.logprobs) + len(self.top_token_ids)) + 32

    def tail(self, start: int) -> Scores:
        """The scores of positions from ``start`` on."""
        skip = start - self.position
        if skip <= 0:
            return self
        return Scores(
            start,
            self.logprobs[skip:],
            self.ranks[skip:],
            self.width,
            self.top_token_ids[skip * self.width :],
            self.top_logprobs[skip * self.width :],
        )


@dataclass(frozen=True, slots=True)
class RowEnd:
    """A row whose sequence ended with its last id."""

    row: int
    reason: EndReason
    stop_token_id: int | None = None


@dataclass(frozen=True, slots=True)
class RowFailure:
    """A row whose sequence cannot go on."""

    row: int
    code: int
    message: str
    field: str = ""


@dataclass(frozen=True, slots=True)
class RowScores:
    """Scores of a row's tokens."""

    row: int
    scores: Scores


@dataclass(frozen=True, slots=True)
class Candidates:
    """The likeliest ids that may follow a beam, best first."""

    token_ids: Seq[int]
    logprobs: Seq[float]


@dataclass(frozen=True, slots=True)
class RowCandidates:
    """What may follow a row's beam."""

    row: int
    candidates: Candidates


@dataclass(slots=True)
class StepResult:
    """The answer to one plan; its rows are the plan's rows."""

    step: int
    num_computed_tokens: Seq[int]
    """Leading tokens of each row's sequence that are final now."""
    num_output_tokens: Seq[int]
    """New ids of each row; 0 for an unfinished prefill and for a sequence that had ended before the step."""
    token_ids: Seq[int]
    """Row by row."""
    ends: Seq[RowEnd] = ()
    failures: Seq[RowFailure] = ()
    scores: Seq[RowScores] = ()
    candidates: Seq[RowCandidates] = ()
    step_us: int = 0
    idle_us: int = 0
    num_drafted_tokens: Seq[int] = ()
    """Draft tokens that each row tried in the last pass; empty when none did."""
    num_repeats: int = 0
    """Passes that followed the first."""

    @property
    def num_accepted_tokens(self) -> int:
        """Drafts that were right: a row's ids beyond one of each pass. An id that ends its sequence is drawn,
        not accepted.
        """
        rows = zip(self.num_drafted_tokens, self.num_output_tokens, strict=False)
        return sum(max(0, count - self.num_repeats - 1) for tried, count in rows if tried)
