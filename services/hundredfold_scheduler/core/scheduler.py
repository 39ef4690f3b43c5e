"""The whole core behind one class: requests in, plans out, results in; times are of one steady clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hundredfold_scheduler.core.admission import PATIENCE_S, Admission
from hundredfold_scheduler.core.ahead import Ahead
from hundredfold_scheduler.core.applier import Applier
from hundredfold_scheduler.core.block_hash import new_seed
from hundredfold_scheduler.core.ending import Ending
from hundredfold_scheduler.core.failures import Code, Failure, Refused
from hundredfold_scheduler.core.fair_room import FairRoom
from hundredfold_scheduler.core.intake import Intake, QueueLimits, expired
from hundredfold_scheduler.core.integrity import check_all
from hundredfold_scheduler.core.limits import WorkerLimits
from hundredfold_scheduler.core.newcomers import Newcomers
from hundredfold_scheduler.core.observer import Observer
from hundredfold_scheduler.core.pacing import BesideDecodes, PromptShare, StartPace
from hundredfold_scheduler.core.planner import Planner
from hundredfold_scheduler.core.policy import (
    AdmissionOrder,
    CheapestOfLowestPriority,
    StrictPriority,
    VictimChoice,
)
from hundredfold_scheduler.core.preemption import Preemption
from hundredfold_scheduler.core.replay import Replay
from hundredfold_scheduler.core.request import Attachment, Request, Submission
from hundredfold_scheduler.core.routing import LeastWork, Router
from hundredfold_scheduler.core.siblings import enqueue
from hundredfold_scheduler.core.state import State
from hundredfold_scheduler.core.step import EndReason, StepPlan, StepResult
from hundredfold_scheduler.core.waiting import WaitingQueue
from hundredfold_scheduler.core.worker import MAX_PLANS_IN_FLIGHT, Worker


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What a deployment decides."""

    queue: QueueLimits
    max_plans_in_flight: int = MAX_PLANS_IN_FLIGHT
    """Of each worker; 1 waits for each result before the next plan."""
    max_unread_bytes: int = 64 * 1024 * 1024
    """Output that one replica may leave unread."""
    order: AdmissionOrder = field(default_factory=StrictPriority)
    victims: VictimChoice = field(default_factory=CheapestOfLowestPriority)
    router: Router = field(default_factory=LeastWork)
    share: PromptShare = field(default_factory=BesideDecodes)
    pace: StartPace = field(default_factory=StartPace)
    run_ahead_s: float = 0.0
    """How long decodes that nobody waits behind go on in one plan."""


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the scheduler is; blocks are those of all workers together."""

    running: int
    waiting: int
    waiting_tokens: int
    free_blocks: int
    cached_blocks: int
    used_blocks: int
    total_blocks: int


class Scheduler:
    """Not thread-safe: one thread calls. Nothing here blocks or waits."""

    def __init__(
        self, config: SchedulerConfig, observer: Observer | None = None, seed: bytes | None = None
    ) -> None:
        watcher = observer if observer is not None else Observer()
        self._config = config
        self.state = State(WaitingQueue(config.order))
        self._observer = watcher
        self._ending = Ending(self.state, watcher)
        self._intake = Intake(self.state, config.queue)
        self._replay = Replay(self.state, seed if seed is not None else new_seed(), self._ending, watcher)
        self._fair_room = FairRoom(config.order)
        preemption = Preemption(self.state, config.victims, self._fair_room, self._ending, watcher)
        admission = Admission(self.state, config.router, self._fair_room, watcher)
        newcomers = Newcomers(self.state, admission)
        ahead = Ahead(preemption, config.run_ahead_s)
        self._planner = Planner(self.state, newcomers, preemption, config.share, config.pace, ahead)
        self._applier = Applier(self.state, self._ending, watcher)

    def attach(self, replica: str, notify: Callable[[], None], now: float) -> Attachment:
        """A replica's new stream. An older one of its name is detached."""
        old = self.state.attachments.get(replica)
        if old is not None:
            self.detach(old, now)
        attachment = Attachment(replica, notify)
        self.state.attachments[replica] = attachment
        return attachment

    def detach(self, attachment: Attachment, now: float) -> None:
        """A replica's stream has ended: its requests are in no later plan."""
        if self.state.attachments.get(attachment.replica) is not attachment:
            return
        for request in list(attachment.requests.values()):
            self._ending.drop(request, now)
        del self.state.attachments[attachment.replica]

    def submit(self, attachment: Attachment, submission: Submission, now: float) -> Request | None:
        """Queue a request; ``None`` when it is refused, and its replica is told why.

        Raises ``ValueError`` when the stream id is in use: an answer would go to the wrong request.
        """
        if self.state.attachments.get(attachment.replica) is not attachment:
            return None  # a last word of a stream that has been superseded
        if submission.stream_id in attachment.requests:
            raise ValueError(f"stream_id {submission.stream_id} is in use")
        state = self.state
        try:
            self._intake.check(submission, now)
        except Refused as refusal:
            state.totals.rejected += 1
            attachment.outbox.add_failed(submission.stream_id, refusal.failure)
            self._observer.rejected(refusal.reason, refusal.failure)
            return None
        request = Request(submission, attachment, state.submitted + 1, now)
        state.submitted += submission.num_seats
        state.requests[submission.request_id] = request
        attachment.requests[submission.stream_id] = request
        if submission.deadline_s is not None:
            request.deadline = state.deadlines.push(now + submission.deadline_s, request)
        enqueue(state, request)
        self._fair_room.saw(request.lead, now)
        state.totals.requests += 1
        state.totals.prompt_tokens += request.lead.prompt_len
        self._observer.submitted(request)
        self._replay.settle(request, now)
        for worker in state.workers.values():
            if worker.called_at is None:
                worker.called_at = now
        return request

    def cancel(self, attachment: Attachment, stream_id: int, now: float) -> None:
        """A client went away. Unknown and ended requests are ignored: their end and the cancel crossed."""
        request = attachment.requests.get(stream_id)
        if request is not None:
            self._ending.drop(request, now)

    def finish(
        self, attachment: Attachment, stream_id: int, index: int, kept_tokens: int, now: float
    ) -> None:
        """The tokenizer ended a choice by a stop string; ids from ``kept_tokens`` on are not delivered any
        more.
        """
        request = attachment.requests.get(stream_id)
        sequence = request.sequences.get(index) if request is not None else None
        if sequence is None or sequence.beams is not None:
            return
        attachment.outbox.truncate(stream_id, index, kept_tokens)
        self._ending.finish(sequence, EndReason.STOP, None, now)

    def connect(self, name: str, limits: WorkerLimits, now: float) -> Worker:
        """A worker with an empty cache is there. ``name`` is the same whenever it comes back."""
        if name in self.state.workers:
            raise ValueError(f"worker {name} is connected already")
        return self._replay.connect(name, limits, now)

    def lose(self, worker: Worker, now: float) -> None:
        """A worker is gone, and with it all that it held."""
        if self.state.workers.get(worker.name) is worker:
            self._replay.lose(worker, now)

    def forget(self, name: str, now: float) -> None:
        """A worker that is gone will not come back: requests that only it could serve end."""
        if name not in self.state.workers:
            self._replay.forget(name, now)

    def plan(self, worker: Worker, now: float) -> StepPlan | None:
        """The next step to send to a worker, or ``None`` while it has nothing to do or enough in flight."""
        self.expire(now)
        if len(worker.in_flight) >= self._config.max_plans_in_flight or now < worker.plans_from():
            return None
        plan = self._planner.plan(worker, now)
        if plan is not None:
            worker.called_at = None
            self._observer.planned(plan, worker.in_flight[-1].rows)
        return plan

    def apply(self, worker: Worker, result: StepResult, now: float) -> None:
        """Take a step's result in. Raises ``WorkerProtocolError``; the caller then loses the worker."""
        self._applier.apply(result, worker, now)
        for attachment in self.state.attachments.values():
            self._bound_unread(attachment, now)

    def expire(self, now: float) -> None:
        """End every request whose deadline has passed, queued or running."""
        deadlines, totals = self.state.deadlines, self.state.totals
        while (entry := deadlines.peek()) is not None and entry.key <= now and entry.item is not None:
            totals.expired += 1
            self._ending.fail(entry.item, expired(), now)

    def next_due(self, now: float) -> float | None:
        """When there is something to do though nothing comes in: a deadline passes, a worker has gathered
        requests for long enough, a next step can be planned, or a worker is late and what waits for it may go
        to another.
        """
        waiting, workers = self.state.waiting, self.state.workers.values()
        deadline = self.state.deadlines.peek()
        times = [deadline.key if deadline is not None else None]
        times += [self._config.pace.due(worker, waiting) for worker in workers]
        times += [start for worker in workers if (start := self._plans_from(worker)) > now]
        if len(waiting) and len(workers) > 1:
            times += [
                worker.late_from(PATIENCE_S) for worker in workers if not worker.is_late(now, PATIENCE_S)
            ]
        return min((when for when in times if when is not None), default=None)

    def _plans_from(self, worker: Worker) -> float:
        """When a worker's next step may be planned; 0 where it cannot be for another reason."""
        return worker.plans_from() if len(worker.in_flight) < self._config.max_plans_in_flight else 0.0

    def drain(self) -> None:
        """Refuse submissions from here on."""
        self._intake.draining = True

    @property
    def idle(self) -> bool:
        """Whether no request is there and no result is due."""
        return not self.state.requests and not any(worker.in_flight for worker in self.state.workers.values())

    def check_integrity(self) -> None:
        """Count everything anew. Raises ``IntegrityError``."""
        check_all(self.state)

    def load(self) -> Load:
        """How busy it is. May be called from another thread: the numbers are then of about the same
        moment.
        """
        state = self.state
        pools = [worker.cache.pool for worker in list(state.workers.values())]
        return Load(
            running=state.num_running,
            waiting=len(state.waiting) + state.num_parked + state.num_held + state.num_held_again,
            waiting_tokens=state.waiting.num_tokens,
            free_blocks=sum(pool.num_free for pool in pools),
            cached_blocks=sum(pool.num_cached for pool in pools),
            used_blocks=sum(pool.num_used for pool in pools),
            total_blocks=sum(pool.num_blocks for pool in pools),
        )

    def _bound_unread(self, attachment: Attachment, now: float) -> None:
        """End the largest readers-behind until what waits for the replica is under the cap."""
        limit = self._config.max_unread_bytes
        while attachment.outbox.nbytes > limit:
            largest = attachment.outbox.largest()
            if largest is None:
                return
            message = f"unread output of the replica passed {limit} bytes, and this request's is the largest"
            failure = Failure(Code.RESOURCE_EXHAUSTED, message)
            request = attachment.requests.get(largest)
            if request is None:  # it has ended here, but its replica has not read that yet
                attachment.outbox.fail(largest, failure)
            else:
                self._ending.fail(request, failure, now)
