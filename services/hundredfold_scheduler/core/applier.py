"""Applies a step's result: tokens to their sequences and replicas, full blocks to the index, ends and
failures.
"""

from __future__ import annotations

from hundredfold_scheduler.core.ending import Ending
from hundredfold_scheduler.core.failures import Failure, WorkerProtocolError
from hundredfold_scheduler.core.observer import Observer
from hundredfold_scheduler.core.preemption import requeue
from hundredfold_scheduler.core.request import Sequence, Status
from hundredfold_scheduler.core.state import InFlight, State, Worker
from hundredfold_scheduler.core.step import RowScores, StepResult

_DONE, _RUNNING, _PARKED = Status.DONE, Status.RUNNING, Status.PARKED
"""Names that cost one look-up in the loops below."""


class Applier:
    """One result per call, in the order of the plans."""

    def __init__(self, state: State, ending: Ending, observer: Observer) -> None:
        self._state = state
        self._ending = ending
        self._observer = observer

    def apply(self, result: StepResult, worker: Worker, now: float) -> None:
        """Take a result in. Raises ``WorkerProtocolError``, with nothing changed, for one that cannot be
        true.
        """
        record = _check(result, worker)
        worker.in_flight.popleft()
        for attachment in self._state.attachments.values():
            attachment.outbox.begin_step()
        failed = {failure.row for failure in result.failures}
        self._apply_rows(result, record, worker, failed, now)
        for row_scores in result.scores:
            self._deliver_scores(row_scores, record.rows[row_scores.row])
        for end in result.ends:
            sequence = record.rows[end.row]
            if sequence.status is not _DONE:
                self._ending.finish(sequence.request, end.reason, end.stop_token_id, now)
        for row_failure in result.failures:
            sequence = record.rows[row_failure.row]
            if sequence.status is _DONE:
                continue
            if sequence.status is _RUNNING:
                worker.cache.distrust(sequence)
            self._ending.fail(sequence.request, Failure(row_failure.code, row_failure.message), now)
        for sequence in record.rows:
            # A victim whose last result this was can be computed again.
            if sequence.status is _PARKED and not sequence.in_flight:
                del self._state.parked[sequence.number]
                requeue(self._state, sequence)

    def _apply_rows(
        self, result: StepResult, record: InFlight, worker: Worker, failed: set[int], now: float
    ) -> None:
        totals = self._state.totals
        totals.steps += 1
        totals.computed_tokens += sum(record.num_tokens)
        computed_after, counts, token_ids = (
            result.num_computed_tokens,
            result.num_output_tokens,
            result.token_ids,
        )
        start = 0
        for row, sequence in enumerate(record.rows):
            count = counts[row]
            end = start + count
            sequence.in_flight -= 1
            sequence.pending -= record.num_tokens[row]
            sequence.pending_samples -= record.num_samples[row]
            status = sequence.status
            if status is _DONE or row in failed:
                start = end
                continue
            computed = computed_after[row]
            if sequence.computed < sequence.high_water:
                totals.recomputed_tokens += min(computed, sequence.high_water) - sequence.computed
            sequence.computed = computed
            if count:
                batch = sequence.outbox.batch()
                batch.stream_ids.append(sequence.stream_id)
                batch.offsets.append(sequence.total - sequence.prompt_len)
                batch.counts.append(count)
                ids = token_ids[start:end]
                batch.token_ids.extend(ids)
                sequence.tokens.extend(ids)
                sequence.total += count
                totals.output_tokens += count
                request = sequence.request
                request.last_token_at = now
                if not request.first_token_at:
                    request.first_token_at = now
                    self._observer.first_token(request, now)
            if status is _RUNNING and computed >= sequence.next_full:
                worker.cache.confirm(sequence)
            start = end

    def _deliver_scores(self, row_scores: RowScores, sequence: Sequence) -> None:
        """Hand scores on, without those that an earlier run of the sequence has delivered."""
        if sequence.status is _DONE:
            return
        scores = row_scores.scores.tail(sequence.scored_to)
        if scores.position < scores.end:
            sequence.scored_to = scores.end
            sequence.outbox.add_scores(sequence.stream_id, scores)


def _check(result: StepResult, worker: Worker) -> InFlight:
    """The plan that a result answers. Raises ``WorkerProtocolError``."""
    if not worker.in_flight:
        raise WorkerProtocolError(f"result of step {result.step} answers no plan")
    record = worker.in_flight[0]
    rows = len(record.rows)
    if result.step != record.step:
        raise WorkerProtocolError(f"result of step {result.step} came instead of step {record.step}")
    if len(result.num_computed_tokens) != rows or len(result.num_output_tokens) != rows:
        raise WorkerProtocolError(
            f"step {result.step} has {rows} rows, the result {len(result.num_computed_tokens)} lengths "
            f"and {len(result.num_output_tokens)} counts"
        )
    counted, brought = sum(result.num_output_tokens), len(result.token_ids)
    if counted != brought:
        raise WorkerProtocolError(f"step {result.step} counts {counted} ids and brings {brought}")
    ended = {end.row for end in result.ends}
    failed = {failure.row for failure in result.failures}
    for row in (*ended, *failed, *(scored.row for scored in result.scores)):
        if not 0 <= row < rows:
            raise WorkerProtocolError(f"step {result.step} speaks of row {row} of {rows}")
    computed, counts = result.num_computed_tokens, result.num_output_tokens
    num_tokens, num_samples = record.num_tokens, record.num_samples
    for row, sequence in enumerate(record.rows):
        if (
            computed[row] != sequence.computed + num_tokens[row]
            or counts[row] != num_samples[row]
            or computed[row] >= sequence.last_needed
        ) and not (sequence.status is _DONE or row in failed):
            _check_unusual(sequence, row, row in ended, record, result)
    return record


def _check_unusual(sequence: Sequence, row: int, ended: bool, record: InFlight, result: StepResult) -> None:
    """A row that did not simply advance as planned. A sequence that goes on has to; else it would wait for
    ever.
    """
    computed = result.num_computed_tokens[row]
    most = sequence.computed + record.num_tokens[row]
    if not sequence.computed <= computed <= most:
        raise WorkerProtocolError(
            f"step {result.step} leaves sequence {sequence.number} at {computed} computed tokens, "
            f"planned were {sequence.computed} to {most}"
        )
    count = result.num_output_tokens[row]
    if count > record.num_samples[row] or sequence.total + count > sequence.end_total:
        raise WorkerProtocolError(
            f"step {result.step} brings {count} ids for sequence {sequence.number}, planned were "
            f"{record.num_samples[row]}, and it has {sequence.num_output} of {sequence.max_tokens}"
        )
    if ended:
        return
    if record.num_samples[row] and not count:
        raise WorkerProtocolError(
            f"step {result.step} brings no id for sequence {sequence.number}, which has not ended"
        )
    if computed >= sequence.last_needed:
        raise WorkerProtocolError(
            f"step {result.step} does not end sequence {sequence.number} at its {sequence.max_tokens} tokens"
        )
