"""The sampler: logits of a step's rows in, one token id per row out, and the scores that were asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hundredfold.plugin import Drawer, DrawRows
from hundredfold_worker.failures import FailureCode, RequestFailure
from hundredfold_worker.floats import FloatRoom
from hundredfold_worker.sampling.candidates import Candidates, best, normalize
from hundredfold_worker.sampling.draw import TorchDrawer
from hundredfold_worker.sampling.edits import TokensOf, apply_edits
from hundredfold_worker.sampling.logprobs import score_tokens
from hundredfold_worker.sampling.noise import row_keys
from hundredfold_worker.sampling.scores import TokenScores
from hundredfold_worker.sampling.table import SamplingTable


@dataclass(frozen=True, slots=True)
class Sampled:
    """What was drawn for R rows."""

    token_ids: NDArray[np.int64]
    """int64[R]; without meaning in rows that failed."""
    failures: dict[int, RequestFailure]
    """By row."""
    scores: dict[int, TokenScores]
    """By row, for the rows that asked: scores of one token."""
    candidates: dict[int, Candidates] = field(default_factory=dict)
    """By row, for beams; nothing was drawn for them."""


class Sampler:
    """Samples with the parameters of a table. Rows are grouped by need; plain greedy ones take an argmax.

    Without a ``drawer`` the plain form in torch draws.
    """

    def __init__(self, table: SamplingTable, drawer: Drawer | None = None) -> None:
        self._table = table
        self._drawer = drawer or TorchDrawer()
        self._room = FloatRoom()

    def sample(
        self, logits: Tensor, slots: NDArray[np.int64], num_outputs: NDArray[np.int64], tokens_of: TokensOf
    ) -> Sampled:
        """Draw a token for each row.

        Args:
            logits: [R, V] of any float type, changed in place.
            slots: int64[R], whose parameters count.
            num_outputs: int64[R], output tokens that each sequence has: the position that is drawn.
            tokens_of: known ids of a slot.
        """
        table = self._table
        if not len(slots):
            return Sampled(np.zeros(0, dtype=np.int64), {}, {})
        limits = table.vocab_limit[slots]
        everyone = np.arange(len(slots))
        token_ids, values = self._drawer.likeliest(logits, everyone, limits)
        failures = _non_finite(values, "non-finite logits: the model's output is not a number or infinite")
        further = np.flatnonzero(~table.likeliest[slots])
        if not len(further):  # a step of such rows is short enough for the rest to be felt
            return Sampled(token_ids, failures, {})
        logits = self._room.floats(logits, slice(further[0], further[-1] + 1))
        scorer = _Scorer(logits, slots, table)
        beams = _without(np.flatnonzero(table.num_candidates[slots] > 0), failures)
        if len(beams):
            normalize(logits, beams, limits[beams])
        edited = _without(np.flatnonzero(table.edits_pending(slots, num_outputs)), failures)
        if len(edited):
            scorer.keep(edited)
            apply_edits(logits, edited, slots[edited], num_outputs[edited], table, tokens_of)
            token_ids[edited], values[edited] = self._drawer.likeliest(logits, edited, limits[edited])
            failures |= _exhausted(edited, values[edited])
        drawn = (table.temperature[slots] > 0.0) & (table.num_candidates[slots] == 0)
        random = _without(np.flatnonzero(drawn), failures)
        if len(random):
            wanted = self._describe(random, slots[random], num_outputs[random], limits, token_ids, values)
            token_ids[random] = self._drawer.draw(logits, wanted)
        candidates = {
            row: best(logits, row, int(limits[row]), int(table.num_candidates[slots[row]]))
            for row in _without(beams, failures).tolist()
        }
        return Sampled(token_ids, failures, scorer.scores(token_ids, failures), candidates)

    def _describe(
        self,
        rows: NDArray[np.intp],
        slots: NDArray[np.int64],
        num_outputs: NDArray[np.int64],
        limits: NDArray[np.int64],
        top_ids: NDArray[np.int64],
        top_values: NDArray[np.float32],
    ) -> DrawRows:
        table = self._table
        return DrawRows(
            rows=rows,
            limits=limits[rows],
            top_ids=top_ids[rows],
            top_values=top_values[rows],
            temperature=table.temperature[slots],
            top_k=table.top_k[slots],
            top_p=table.top_p[slots],
            min_p=table.min_p[slots],
            keys=row_keys(table.seed[slots], table.choice[slots], num_outputs.astype(np.uint64)),
        )


class _Scorer:
    """Scores the rows that asked, under the logits as they were before any edit."""

    def __init__(self, logits: Tensor, slots: NDArray[np.int64], table: SamplingTable) -> None:
        self._logits = logits
        self._slots = slots
        self._table = table
        self._asked = np.flatnonzero(table.logprobs[slots] >= 0)
        self._kept: dict[int, Tensor] = {}

    def keep(self, edited: NDArray[np.intp]) -> None:
        """Copy what is about to be edited and was asked for."""
        for row in np.intersect1d(edited, self._asked).tolist():
            self._kept[row] = self._logits[row : row + 1].clone()

    def scores(
        self, token_ids: NDArray[np.int64], failures: dict[int, RequestFailure]
    ) -> dict[int, TokenScores]:
        """Scores of the drawn tokens by row."""
        found: dict[int, TokenScores] = {}
        asked = _without(self._asked, failures).tolist()
        limits, widths = self._table.vocab_limit[self._slots], self._table.logprobs[self._slots]
        plain: dict[int, list[int]] = {}
        for row in asked:
            if row in self._kept:
                at = np.zeros(1, dtype=np.int64)
                target, limit, width = token_ids[row : row + 1], int(limits[row]), int(widths[row])
                found[row] = score_tokens(self._kept[row], at, target, limit, width)
            else:
                plain.setdefault(int(limits[row]), []).append(row)
        for limit, rows in plain.items():
            at = np.array(rows, dtype=np.int64)
            scores = score_tokens(self._logits, at, token_ids[at], limit, int(widths[at].max()))
            found.update((row, scores.one(i, int(widths[row]))) for i, row in enumerate(rows))
        return found


def _non_finite(values: NDArray[np.float32], message: str) -> dict[int, RequestFailure]:
    failure = RequestFailure(FailureCode.INTERNAL, message)
    return dict.fromkeys(np.flatnonzero(~np.isfinite(values)).tolist(), failure)


def _exhausted(rows: NDArray[np.intp], values: NDArray[np.float32]) -> dict[int, RequestFailure]:
    masked = RequestFailure(
        FailureCode.INVALID_ARGUMENT,
        "no token is left to sample: bad_words, stop ids before min_tokens and logit_bias exclude all",
        "bad_words",
    )
    overflow = RequestFailure(FailureCode.INTERNAL, "non-finite logits after penalties and bias")
    return {
        int(row): masked if value == -np.inf else overflow
        for row, value in zip(rows, values, strict=True)
        if not np.isfinite(value)
    }


def _without(rows: NDArray[Any], failures: dict[int, RequestFailure]) -> NDArray[np.intp]:
    if not failures:
        return rows
    return np.array([row for row in rows.tolist() if row not in failures], dtype=np.intp)
