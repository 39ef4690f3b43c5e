"""Collects what became of each row of a plan, whatever order the rows were computed in."""

from __future__ import annotations

import numpy as np

from hundredfold_worker.engine.plan import (
    EndReason,
    Ints,
    RowCandidates,
    RowEnd,
    RowFailure,
    RowScores,
    StepPlan,
    StepResult,
)
from hundredfold_worker.engine.slots import OVER, SlotTable
from hundredfold_worker.failures import RequestFailure
from hundredfold_worker.sampling.candidates import Candidates


class Outcome:
    """A step's result in the making. Rows are the plan's rows."""

    def __init__(self, plan: StepPlan, table: SlotTable) -> None:
        self._plan = plan
        self._table = table
        self._num_outputs: Ints = np.zeros(len(plan.slots), dtype=np.int64)
        self._num_drafted: Ints = np.zeros(len(plan.slots), dtype=np.int64)
        self._sampled: list[tuple[Ints, Ints]] = []
        self._ends: list[RowEnd] = []
        self._failures: list[RowFailure] = []
        self._scores: list[RowScores] = []
        self._candidates: list[RowCandidates] = []
        self._num_passes = 0

    def begin_pass(self) -> None:
        """The rows that go on are computed once more."""
        self._num_passes += 1

    @property
    def num_passes(self) -> int:
        """Passes so far."""
        return self._num_passes

    def sampled(self, rows: Ints, token_ids: Ints) -> None:
        """Each row has a new output id, the one after those told before."""
        self._num_outputs[rows] += 1
        self._sampled.append((rows, token_ids))

    def drafted(self, rows: Ints, num_drafts: Ints) -> None:
        """Each row has tried so many draft tokens."""
        self._num_drafted[rows] = num_drafts

    def ended(self, row: int, reason: EndReason, stop_token_id: int | None = None) -> None:
        """A row's sequence is complete."""
        self._table.state[self._plan.slots[row]] = OVER
        self._ends.append(RowEnd(row, reason, stop_token_id))

    def failed(self, row: int, failure: RequestFailure) -> None:
        """A row's sequence cannot go on."""
        self._table.state[self._plan.slots[row]] = OVER
        self._failures.append(RowFailure(row, failure))

    def scored(self, scores: RowScores) -> None:
        """Scores of a row; those of one row come in the order of their positions."""
        self._scores.append(scores)

    def searched(self, row: int, candidates: Candidates) -> None:
        """What may follow a row's beam."""
        self._candidates.append(RowCandidates(row, candidates))

    def result(self, step_us: int, idle_us: int) -> StepResult:
        """The result."""
        return StepResult(
            step=self._plan.step,
            num_computed=self._table.computed[self._plan.slots],
            num_outputs=self._num_outputs,
            token_ids=self._token_ids(),
            num_drafted=self._num_drafted if self._num_drafted.any() else self._num_drafted[:0],
            num_repeats=max(0, self._num_passes - 1),
            ends=tuple(self._ends),
            failures=tuple(self._failures),
            scores=tuple(self._scores),
            candidates=tuple(self._candidates),
            step_us=step_us,
            idle_us=idle_us,
        )

    def _token_ids(self) -> Ints:
        """All new ids, row by row."""
        if not self._sampled:
            return np.zeros(0, dtype=np.int64)
        rows = np.concatenate([rows for rows, _ in self._sampled])
        ids: Ints = np.concatenate([ids for _, ids in self._sampled])
        return ids[np.argsort(rows, kind="stable")]
