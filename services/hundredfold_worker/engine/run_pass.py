"""One pass: batch, forward, sampling and prompt scores, and only then the change of the slots."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hundredfold_worker.engine.batch import build_batch, send
from hundredfold_worker.engine.outcome import Outcome
from hundredfold_worker.engine.passes import Pass, num_scored
from hundredfold_worker.engine.plan import EndReason, Ints, RowScores
from hundredfold_worker.engine.slots import SlotTable
from hundredfold_worker.failures import FailureCode, RequestFailure
from hundredfold_worker.model import LoadedModel, PagedCache, nothing
from hundredfold_worker.sampling.logprobs import score_tokens
from hundredfold_worker.sampling.noise import spread
from hundredfold_worker.sampling.sampler import Sampled, Sampler


@dataclass(slots=True)
class StepTimes:
    """Seconds spent so far, by part of a step."""

    batch_s: float = 0.0
    forward_s: float = 0.0
    sample_s: float = 0.0
    commit_s: float = 0.0
    total_s: float = 0.0
    """Whole steps; what the parts do not cover is applying plans and collecting results."""

    def parts(self) -> dict[str, float]:
        """Seconds by part: batch, forward, sample, commit, and total."""
        return {name.removesuffix("_s"): seconds for name, seconds in asdict(self).items()}

    def since(self, before: StepTimes) -> StepTimes:
        """What came on top of ``before``."""
        return StepTimes(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))


class PassRunner:
    """Runs passes of one model over one cache and one table."""

    def __init__(self, model: LoadedModel, cache: PagedCache, table: SlotTable) -> None:
        self._model = model
        self._cache = cache
        self._table = table
        self._sampler = Sampler(table.sampling, model.drawer(spread(np.arange(table.limits.vocab_size))))
        self.times = StepTimes()
        self.before_kernels: Callable[[], None] = nothing

    def run(self, part: Pass, outcome: Outcome) -> None:
        """Compute the pass. What raises before a row has got a token has not changed its slot: such rows can
        be tried again.
        """
        table, times = self._table, self.times
        begun = time.perf_counter()
        batch = build_batch(table, part.slots, part.takes + part.drafts, self._model.device)
        complete = table.computed[part.slots] + part.takes == table.length[part.slots]
        num_outputs = table.num_outputs(part.slots)
        draws = complete & (num_outputs < table.sampling.max_tokens[part.slots])
        scored = num_scored(table, part.slots, part.takes)
        rounds = _rounds(np.flatnonzero(draws), part.drafts)
        lasts = batch.starts + part.takes - 1
        logits_at = np.concatenate([lasts[members] + depth for depth, members in enumerate(rounds)])
        num_drawn = len(logits_at)
        if scored.any():
            logits_at = np.concatenate([logits_at, _run_lengths(batch.starts, scored)])
        built = time.perf_counter()
        wanted = send(logits_at, self._model.device)
        logits = self._model.forward(
            batch.token_ids, batch.attention, self._cache, wanted, self.before_kernels
        )
        forwarded = time.perf_counter()
        drawn = rounds[0]
        sampled = self._sampler.sample(
            logits[: len(drawn)], part.slots[drawn], num_outputs[drawn], table.tokens_of
        )
        failed = {int(drawn[i]): failure for i, failure in sampled.failures.items()}
        scores = self._score_prompts(part, scored, logits[num_drawn:].float(), failed) if scored.any() else []
        scores += self._scores(part, drawn, sampled)
        sampled_at = time.perf_counter()
        self._report(part, failed, scores, outcome)
        good = np.ones(len(part.rows), dtype=np.bool_)
        good[list(failed)] = False
        table.computed[part.slots[good]] += part.takes[good]
        for row in part.rows[complete & ~draws & good].tolist():  # only scored, nothing to draw
            outcome.ended(row, EndReason.LENGTH)
        going_on = self._commit(part, drawn, good[drawn], sampled, outcome)
        times.batch_s += built - begun
        times.forward_s += forwarded - built
        times.sample_s += sampled_at - forwarded
        times.commit_s += time.perf_counter() - sampled_at
        if len(rounds) > 1:
            outcome.drafted(part.rows, part.drafts)
            self._verify(part, rounds, going_on, logits, outcome)
            times.sample_s += time.perf_counter() - sampled_at

    def _verify(
        self, part: Pass, rounds: list[Ints], going_on: NDArray[np.bool_], logits: Tensor, outcome: Outcome
    ) -> None:
        """Draw behind each draft that was right, one position after the other: by then the history is what it
        would be without drafts, so whatever decides a token decides the same one.

        A draft that is right is a token of the answer, computed already. What goes wrong behind the first
        token is left to the next step, where it comes at the front.
        """
        table = self._table
        start = len(rounds[0])
        for members in rounds[1:]:
            drawn = members[going_on[members]]
            if not len(drawn):
                return
            at = start + np.flatnonzero(going_on[members])
            start += len(members)
            slots = part.slots[drawn]
            sampled = self._sampler.sample(
                logits[send(at, logits.device)], slots, table.num_outputs(slots), table.tokens_of
            )
            good = np.ones(len(drawn), dtype=np.bool_)
            good[list(sampled.failures)] = False
            for found in self._scores(part, drawn, sampled):
                outcome.scored(found)
            table.computed[slots[good]] += 1
            going_on = self._commit(part, drawn, good, sampled, outcome)

    def _scores(self, part: Pass, drawn: Ints, sampled: Sampled) -> list[RowScores]:
        """Scores of the tokens drawn for ``drawn``, rows of the pass."""
        table = self._table
        return [
            RowScores(int(part.rows[drawn[i]]), int(table.length[part.slots[drawn[i]]]), found)
            for i, found in sampled.scores.items()
        ]

    def _score_prompts(
        self, part: Pass, scored: Ints, logits: Tensor, failed: dict[int, RequestFailure]
    ) -> list[RowScores]:
        """Score prompts; ``logits`` holds each row's scored positions, one row after the other."""
        table = self._table
        found: list[RowScores] = []
        start = 0
        for i in np.flatnonzero(scored).tolist():
            slot, count = int(part.slots[i]), int(scored[i])
            first = int(table.computed[slot]) + 1
            scores = score_tokens(
                logits,
                np.arange(start, start + count),
                table.ids[slot, first : first + count].astype(np.int64),
                int(table.sampling.vocab_limit[slot]),
                int(table.sampling.prompt_logprobs[slot]),
            )
            start += count
            found.append(RowScores(int(part.rows[i]), first, scores))
            if not np.isfinite(scores.logprobs).all():
                failed.setdefault(i, RequestFailure(FailureCode.INTERNAL, "non-finite logits in the prompt"))
        return found

    def _report(
        self, part: Pass, failed: dict[int, RequestFailure], scores: list[RowScores], outcome: Outcome
    ) -> None:
        for i, failure in failed.items():
            outcome.failed(int(part.rows[i]), _with_position(failure, self._table, int(part.slots[i])))
        rows_failed = {int(part.rows[i]) for i in failed}
        for found in scores:
            if found.row not in rows_failed:
                outcome.scored(found)

    def _commit(
        self, part: Pass, drawn: Ints, good: NDArray[np.bool_], sampled: Sampled, outcome: Outcome
    ) -> NDArray[np.bool_]:
        """Take in what was drawn for ``drawn``, rows of the pass, where it is ``good``. Returns bool[n]: rows
        of the pass that go on and whose token is the draft that was tried at its place.
        """
        table, sampling = self._table, self._table.sampling
        for i, candidates in sampled.candidates.items():
            if good[i]:
                outcome.searched(int(part.rows[drawn[i]]), candidates)
        kept = good & (sampling.num_candidates[part.slots[drawn]] == 0)
        members, token_ids = drawn[kept], sampled.token_ids[kept]
        rows, slots = part.rows[members], part.slots[members]
        going_on = np.zeros(len(part.rows), dtype=np.bool_)
        going_on[members] = table.ids[slots, table.length[slots]] == token_ids
        table.append(slots, token_ids)
        outcome.sampled(rows, token_ids)
        stops = sampling.is_stop(slots, token_ids)
        full = table.num_outputs(slots) >= sampling.max_tokens[slots]
        for i in np.flatnonzero(stops | full).tolist():
            going_on[members[i]] = False
            if stops[i]:
                outcome.ended(int(rows[i]), EndReason.STOP, int(token_ids[i]))
            else:
                outcome.ended(int(rows[i]), EndReason.LENGTH)
        return going_on


def _rounds(drawn: Ints, drafts: Ints) -> list[Ints]:
    """Rows of a pass that draw: first all of ``drawn``, then those that may go on behind 1, 2, … drafts."""
    deepest = int(drafts.max()) if len(drafts) else 0
    return [drawn, *(drawn[drafts[drawn] >= depth] for depth in range(1, deepest + 1))]


def _run_lengths(starts: Ints, counts: Ints) -> Ints:
    """``starts[i], starts[i] + 1, …`` for each row, ``counts[i]`` of them."""
    ends = np.cumsum(counts)
    flat: Ints = np.arange(int(ends[-1])) + np.repeat(starts - (ends - counts), counts)
    return flat


def _with_position(failure: RequestFailure, table: SlotTable, slot: int) -> RequestFailure:
    if failure.code is not FailureCode.INTERNAL:
        return failure
    where = f"sequence {int(table.sequence_id[slot])}, position {int(table.computed[slot])} or after"
    return RequestFailure(failure.code, f"{failure.message} ({where})")
