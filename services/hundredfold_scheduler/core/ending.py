"""The one place where a request leaves: well, failed or dropped, from whatever state it is in."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from hundredfold_scheduler.core.beam_search import Hypothesis
from hundredfold_scheduler.core.failures import Failure
from hundredfold_scheduler.core.observer import Observer
from hundredfold_scheduler.core.outbox import FinishedChoice
from hundredfold_scheduler.core.request import Request, Sequence, Status
from hundredfold_scheduler.core.siblings import let_go, release_followers
from hundredfold_scheduler.core.state import State
from hundredfold_scheduler.core.step import EndReason
from hundredfold_scheduler.core.worker import Worker


class Ending:
    """Ends requests. Blocks and slot are free at once: all later plans follow the last that names them."""

    def __init__(self, state: State, observer: Observer) -> None:
        self._state = state
        self._observer = observer

    def finish(self, sequence: Sequence, reason: EndReason, stop_token_id: int | None, now: float) -> None:
        """A choice has ended; its replica is told what it took. With the last one the request has."""
        request = sequence.request
        request.attachment.outbox.add_finished(
            FinishedChoice(
                stream_id=sequence.stream_id,
                index=sequence.choice_index,
                reason=reason,
                stop_token_id=stop_token_id,
                account=sequence.taken(now),
            )
        )
        self._leave(sequence)
        if sequence.leads:
            release_followers(self._state, sequence)
        if not request.sequences:
            self._succeed(request, reason, now)

    def finish_beams(self, request: Request, hypotheses: Seq[Hypothesis], now: float) -> None:
        """A beam search is over: its best beams are told whole, best first."""
        lead, outbox = request.lead, request.attachment.outbox
        lead.last_token_at = now
        for index, found in enumerate(hypotheses):
            outbox.add_tokens(lead.stream_id, index, found.output)
            outbox.add_finished(
                FinishedChoice(
                    stream_id=lead.stream_id,
                    index=index,
                    reason=found.reason,
                    stop_token_id=found.stop_token_id,
                    account=lead.taken(now),
                    beam_score=found.score,
                )
            )
            request.num_output += len(found.output)
        self._state.totals.output_tokens += request.num_output
        self._leave_all(request)
        self._succeed(request, hypotheses[0].reason, now)

    def fail(self, request: Request, failure: Failure, now: float) -> None:
        """The request ends with a status; what it has not read is dropped."""
        request.attachment.outbox.fail(request.lead.stream_id, failure)
        self._leave_all(request)
        self._close(request, now)
        self._state.totals.failed += 1
        self._observer.failed(request, failure, now)

    def drop(self, request: Request, now: float) -> None:
        """The request's client went away; nobody is told."""
        request.attachment.outbox.forget(request.lead.stream_id)
        self._leave_all(request)
        self._close(request, now)
        self._state.totals.cancelled += 1
        self._observer.dropped(request, now)

    def unseat(self, sequence: Sequence, worker: Worker) -> None:
        """Give back a running sequence's slot and blocks."""
        del worker.running[sequence.number]
        worker.beams.pop(sequence.number, None)
        worker.cache.release(sequence)
        worker.slots.give_back(sequence.slot, introduced=sequence.introduced)
        sequence.introduced = False
        sequence.slot = -1

    def _leave_all(self, request: Request) -> None:
        request.followers = []
        for sequence in list(request.sequences.values()):
            self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        state, worker = self._state, sequence.worker
        if sequence.status is Status.HELD:
            let_go(state, sequence)
            if sequence in sequence.request.followers:
                sequence.request.followers.remove(sequence)
        elif worker is None:
            state.waiting.remove(sequence)
        elif sequence.status is Status.RUNNING:
            self.unseat(sequence, worker)
        else:
            del worker.parked[sequence.number]
        sequence.worker = None
        sequence.status = Status.DONE
        state.waiting.leave(sequence)
        if sequence.beams is None:
            sequence.request.num_output += sequence.num_output
        del sequence.request.sequences[sequence.choice_index]

    def _succeed(self, request: Request, reason: EndReason, now: float) -> None:
        self._close(request, now)
        self._state.totals.finished += 1
        self._observer.finished(request, reason, now)

    def _close(self, request: Request, now: float) -> None:
        state = self._state
        if request.deadline is not None:
            state.deadlines.remove(request.deadline)
            request.deadline = None
        del state.requests[request.request_id]
        del request.attachment.requests[request.lead.stream_id]
        state.finish_rate.record(now)
