"""The one place where a request leaves: well, failed or dropped, from whatever state it is in."""

from __future__ import annotations

from hundredfold_scheduler.core.failures import Failure
from hundredfold_scheduler.core.observer import Observer
from hundredfold_scheduler.core.outbox import FinishedChoice
from hundredfold_scheduler.core.request import Request, Sequence, Status
from hundredfold_scheduler.core.state import State
from hundredfold_scheduler.core.step import EndReason
from hundredfold_scheduler.core.worker import Worker


class Ending:
    """Ends requests. Blocks and slot are free at once: all later plans follow the last that names them."""

    def __init__(self, state: State, observer: Observer) -> None:
        self._state = state
        self._observer = observer

    def finish(self, request: Request, reason: EndReason, stop_token_id: int | None, now: float) -> None:
        """The request's choice has ended; its replica is told what it took."""
        sequence = request.sequence
        request.attachment.outbox.add_finished(
            FinishedChoice(
                stream_id=sequence.stream_id,
                index=sequence.choice_index,
                reason=reason,
                stop_token_id=stop_token_id,
                account=request.account(now),
            )
        )
        self._leave(request, now)
        self._state.totals.finished += 1
        self._observer.finished(request, reason, now)

    def fail(self, request: Request, failure: Failure, now: float) -> None:
        """The request ends with a status; what it has not read is dropped."""
        request.attachment.outbox.fail(request.sequence.stream_id, failure)
        self._leave(request, now)
        self._state.totals.failed += 1
        self._observer.failed(request, failure, now)

    def drop(self, request: Request, now: float) -> None:
        """The request's client went away; nobody is told."""
        request.attachment.outbox.forget(request.sequence.stream_id)
        self._leave(request, now)
        self._state.totals.cancelled += 1
        self._observer.dropped(request, now)

    def unseat(self, sequence: Sequence, worker: Worker) -> None:
        """Give back a running sequence's slot and blocks."""
        del worker.running[sequence.number]
        worker.cache.release(sequence)
        worker.slots.give_back(sequence.slot)
        sequence.slot = -1

    def _leave(self, request: Request, now: float) -> None:
        state = self._state
        sequence = request.sequence
        worker = sequence.worker
        if worker is None:
            state.waiting.remove(sequence)
        elif sequence.status is Status.RUNNING:
            self.unseat(sequence, worker)
        else:
            del worker.parked[sequence.number]
        sequence.worker = None
        sequence.status = Status.DONE
        state.waiting.leave(sequence)
        if request.deadline is not None:
            state.deadlines.remove(request.deadline)
            request.deadline = None
        del state.requests[request.request_id]
        del request.attachment.requests[sequence.stream_id]
        state.finish_rate.record(now)
