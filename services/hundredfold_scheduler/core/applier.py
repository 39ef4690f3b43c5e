"""Applies a step's result: ids to sequences and replicas, full blocks to the index, ends and failures."""

from __future__ import annotations

from array import array

from hundredfold_scheduler.core.beam_group import BeamGroup
from hundredfold_scheduler.core.ending import Ending
from hundredfold_scheduler.core.failures import Code, Failure, WorkerProtocolError
from hundredfold_scheduler.core.observer import Observer
from hundredfold_scheduler.core.outbox import Outbox
from hundredfold_scheduler.core.preemption import requeue
from hundredfold_scheduler.core.request import Sequence, Status
from hundredfold_scheduler.core.siblings import release_followers
from hundredfold_scheduler.core.state import State
from hundredfold_scheduler.core.step import RowScores, StepResult
from hundredfold_scheduler.core.step_cost import Work
from hundredfold_scheduler.core.worker import InFlight, Worker

_DONE, _RUNNING = Status.DONE, Status.RUNNING
"""Names that cost one look-up in the loops below."""
_NO_TOKENS: array[int] = array("I")


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
            attachment.outbox.begin_step(worker.name)
        self._apply_rows(result, record, worker, now)
        for row_scores in result.scores:
            self._deliver_scores(row_scores, record.rows[row_scores.row])
        for end in result.ends:
            sequence = record.rows[end.row]
            if sequence.status is not _DONE:
                self._ending.finish(sequence, end.reason, end.stop_token_id, now)
        for row_failure in result.failures:
            sequence = record.rows[row_failure.row]
            if sequence.status is _DONE:
                continue
            worker.cache.distrust(sequence)
            reason = Failure(row_failure.code, row_failure.message, row_failure.field)
            self._ending.fail(sequence.request, reason, now)
        if result.candidates:
            self._search(result, record, worker, now)
        worker.applied = record.step
        worker.answered(record, result.step_us / 1e6, now)
        for sequence in list(worker.parked.values()):
            if sequence.last_step <= record.step:
                # A victim whose last result this was can be computed again.
                del worker.parked[sequence.number]
                requeue(self._state, sequence)

    def _apply_rows(self, result: StepResult, record: InFlight, worker: Worker, now: float) -> None:
        """The loop that costs most: it runs for every row of every step."""
        failed = {failure.row for failure in result.failures}
        token_ids = result.token_ids
        outbox: Outbox | None = None
        start = output = recomputed = skipped = row = 0
        for sequence, num_tokens, num_samples, computed, count in zip(
            record.rows,
            record.num_tokens,
            record.num_samples,
            result.num_computed_tokens,
            result.num_output_tokens,
            strict=True,
        ):
            row += 1
            status = sequence.status
            if status is _DONE or (failed and row - 1 in failed):
                start += count
                skipped += not count
                continue
            before = sequence.computed
            sequence.computed = computed
            if before < sequence.high_water:
                recomputed += min(computed, sequence.high_water) - before
            if count:
                if sequence.outbox is not outbox:
                    outbox = sequence.outbox
                    fresh = outbox.fresh
                    add_stream, add_offset = fresh.stream_ids.append, fresh.offsets.append
                    add_index = fresh.indexes.append
                    add_count, add_id = fresh.counts.append, fresh.token_ids.append
                total = sequence.total
                add_stream(sequence.stream_id)
                add_index(sequence.choice_index)
                add_offset(total - sequence.prompt_len)
                add_count(count)
                sequence.total = total + count
                if count == 1:
                    token = token_ids[start]
                    add_id(token)
                    sequence.tokens.append(token)
                else:
                    ids = token_ids[start : start + count]
                    fresh.token_ids.extend(ids)
                    sequence.tokens.extend(ids)
                start += count
                output += count
                account = sequence.account
                if account is not None:
                    account.served += count
                sequence.last_token_at = now
                if not sequence.first_token_at:
                    sequence.first_token_at = now
                    if not sequence.request.answered:
                        sequence.request.answered = True
                        self._observer.first_token(sequence.request, now)
                if sequence.leads:
                    release_followers(self._state, sequence)
            if computed >= sequence.next_full and status is _RUNNING:
                worker.cache.confirm(sequence)
            if computed != before + num_tokens or count != num_samples:
                # Less than the plan allowed for: the next plan starts from what is true.
                sequence.reserved -= before + num_tokens - computed
                sequence.known -= num_samples - count
        totals = self._state.totals
        totals.steps += 1
        totals.prefill_tokens += record.work.tokens
        drafted, accepted = sum(result.num_drafted_tokens), result.num_accepted_tokens
        totals.drafted_tokens += drafted
        totals.accepted_tokens += accepted
        passes = 1 + result.num_repeats
        if passes == 1:
            decoded = record.work.rows
        else:  # a row may have ended in any of them: as many as there are ids
            decoded, skipped = len(token_ids) - accepted, 0
        each = _each_pass(record.work, passes, decoded - skipped, drafted)
        worker.cost.observe(each, result.step_us / 1e6 / passes)
        computed_tokens = record.work.tokens + decoded + drafted
        totals.computed_tokens += computed_tokens
        totals.output_tokens += output
        totals.recomputed_tokens += recomputed
        self._observer.stepped(result, computed_tokens, recomputed)

    def _deliver_scores(self, row_scores: RowScores, sequence: Sequence) -> None:
        """Hand scores on, without those that an earlier run of the sequence has delivered."""
        if sequence.status is _DONE:
            return
        scores = row_scores.scores.tail(sequence.scored_to)
        if scores.position < scores.end:
            sequence.scored_to = scores.end
            sequence.outbox.add_scores(sequence.stream_id, sequence.choice_index, scores)

    def _search(self, result: StepResult, record: InFlight, worker: Worker, now: float) -> None:
        """Give beams their candidates; a group that has them all chooses how to go on, or is done."""
        groups: dict[int, BeamGroup] = {}
        for found in result.candidates:
            sequence = record.rows[found.row]
            group = sequence.beams
            if group is not None and sequence.status is _RUNNING:
                group.answer(sequence, found.candidates)
                groups[group.lead.number] = group
        for group in groups.values():
            if group.is_answered:
                self._choose(group, worker, now)

    def _choose(self, group: BeamGroup, worker: Worker, now: float) -> None:
        lead = group.lead
        unwanted = group.choose()
        if lead.account is not None:
            lead.account.served += max(1, len(group.chosen))
        if not lead.first_token_at:
            lead.first_token_at = now
            lead.request.answered = True
            self._observer.first_token(lead.request, now)
        if group.search.over:
            self._finish(group, now)
            return
        for member in unwanted:
            worker.cache.release(member)
            member.become(_NO_TOKENS)
            if member.introduced:
                worker.slots.clear(member.slot)
                member.introduced = False

    def _finish(self, group: BeamGroup, now: float) -> None:
        request = group.lead.request
        best = group.search.complete[: request.submission.n]
        if len(best) == request.submission.n:
            self._ending.finish_beams(request, best, now)
            return
        message = f"the model's likeliest tokens are too few for {request.submission.n} complete beams"
        self._ending.fail(request, Failure(Code.INTERNAL, message), now)


def _each_pass(work: Work, passes: int, decoded: int, drafted: int) -> Work:
    """What a pass computed on average of a plan with such work, whose passes came to so many decodes of rows
    that went on, and so many drafts.
    """
    if not work.rows or (passes == 1 and decoded == work.rows and not drafted):
        return work
    rows, drafts, each = max(0, round(decoded / passes)), drafted / passes, work.context / work.rows
    return Work(rows, round(rows * each), work.tokens + round(drafts), work.pairs + round(drafts * each))


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
    searched = {found.row for found in result.candidates}
    for row in (*ended, *failed, *searched, *(scored.row for scored in result.scores)):
        if not 0 <= row < rows:
            raise WorkerProtocolError(f"step {result.step} speaks of row {row} of {rows}")
    if not 0 <= result.num_repeats <= record.num_repeats:
        raise WorkerProtocolError(
            f"step {result.step} has {result.num_repeats} repeats, planned were {record.num_repeats} at most"
        )
    if result.num_drafted_tokens:
        _check_drafts(record, result)
    rows_of_result = zip(
        record.rows,
        record.num_tokens,
        record.num_samples,
        result.num_computed_tokens,
        result.num_output_tokens,
        strict=True,
    )
    for row, (sequence, num_tokens, num_samples, computed, count) in enumerate(rows_of_result):
        if (
            (
                computed != sequence.computed + num_tokens
                or count != num_samples
                or computed >= sequence.last_needed
            )
            and sequence.status is not _DONE
            and row not in failed
        ):
            if sequence.beams is None:
                _check_unusual(sequence, row, row in ended, record, result)
            else:
                _check_beam(sequence, row, row in searched and row not in ended, record, result)
    return record


def _check_drafts(record: InFlight, result: StepResult) -> None:
    """Rows try no more drafts than they may, and bring an id of each pass and as many as drafts at most."""
    tried = result.num_drafted_tokens
    if len(tried) != len(record.rows):
        raise WorkerProtocolError(
            f"step {result.step} has {len(record.rows)} rows, the result {len(tried)} numbers of drafts"
        )
    rows = zip(tried, record.num_samples, result.num_output_tokens, strict=True)
    for row, (drafts, num_samples, count) in enumerate(rows):
        if drafts and not (0 < drafts < num_samples and count <= drafts + 1 + result.num_repeats):
            raise WorkerProtocolError(
                f"step {result.step} tries {drafts} drafts and brings {count} ids in row {row}, planned were "
                f"{num_samples} ids at most"
            )


def _check_beam(sequence: Sequence, row: int, searched: bool, record: InFlight, result: StepResult) -> None:
    """A beam advances as planned, gets no ids, and at its last known token the candidates for the next."""
    computed = result.num_computed_tokens[row]
    planned = sequence.computed + record.num_tokens[row]
    if computed != planned or result.num_output_tokens[row] or (computed >= sequence.total and not searched):
        raise WorkerProtocolError(
            f"step {result.step} leaves beam {sequence.number} at {computed} computed tokens with "
            f"{result.num_output_tokens[row]} ids, planned were {planned} and candidates"
        )


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
    if record.num_samples[row] > 1 and count != computed - sequence.computed:
        raise WorkerProtocolError(
            f"step {result.step} brings {count} ids for sequence {sequence.number} and computes "
            f"{computed - sequence.computed} tokens of it: drafts that were right are both"
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
