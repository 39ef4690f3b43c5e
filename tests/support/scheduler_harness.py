"""Drives the scheduler's core against the fake worker, no network: one call is one turn of the engine."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from hundredfold_scheduler.core.failures import Failure
from hundredfold_scheduler.core.intake import QueueLimits
from hundredfold_scheduler.core.integrity import check_all, check_sums
from hundredfold_scheduler.core.limits import WorkerLimits
from hundredfold_scheduler.core.observer import Observer
from hundredfold_scheduler.core.outbox import FinishedChoice
from hundredfold_scheduler.core.pacing import BesideDecodes, PromptShare, StartPace
from hundredfold_scheduler.core.policy import (
    AdmissionOrder,
    LatestOfLowestPriority,
    StrictPriority,
    VictimChoice,
)
from hundredfold_scheduler.core.request import Attachment, Request, Submission
from hundredfold_scheduler.core.scheduler import Scheduler, SchedulerConfig
from hundredfold_scheduler.core.step import StepPlan, StepResult
from hundredfold_scheduler.core.worker import Worker
from support.fake_worker import EOS, FakeWorker, Script

SMALL = WorkerLimits(
    model_fingerprint="model",
    max_model_len=256,
    vocab_size=1000,
    block_size=16,
    num_blocks=64,
    max_num_seqs=8,
    max_num_batched_tokens=64,
)
"""A worker on which every limit is soon met."""


UNBOUNDED = QueueLimits(max_requests=10**9, max_tokens=10**9)
BY_LENGTH = Script()
"""Ends at ``max_tokens`` and nowhere else."""


@dataclass
class Received:
    """What a replica was told about one request; of its choices this is the first."""

    ids: list[int] = field(default_factory=list)
    finished: FinishedChoice | None = None
    failure: Failure | None = None
    others: dict[int, Received] = field(default_factory=dict)
    """The other choices."""

    @property
    def choices(self) -> list[Received]:
        """All choices by index."""
        return [self, *self.others.values()]

    @property
    def ended(self) -> bool:
        """Whether its end was told."""
        return self.failure is not None or all(choice.finished is not None for choice in self.choices)


@dataclass
class Harness:
    """Scheduler, worker and one tokenizer replica that always reads. Time passes by steps: one second
    each.
    """

    limits: WorkerLimits = SMALL
    plans_in_flight: int = 2
    queue: QueueLimits = UNBOUNDED
    max_unread_bytes: int = 1 << 26
    order: AdmissionOrder = field(default_factory=StrictPriority)
    victims: VictimChoice = field(default_factory=LatestOfLowestPriority)
    observer: Observer | None = None
    check_every_step: bool = True
    now: float = 1000.0
    share: PromptShare = field(default_factory=BesideDecodes)
    pace: StartPace = field(default_factory=StartPace)
    run_ahead_s: float = 0.0

    def __post_init__(self) -> None:
        self.received: dict[int, Received] = {}
        self.submissions: dict[int, Submission] = {}
        self.numbers: dict[int, int] = {}
        """Stream ids by the scheduler's own numbers."""
        self.plans: list[StepPlan] = []
        self.results: deque[StepResult] = deque()
        self.start_scheduler()

    def start_scheduler(self) -> None:
        """A new scheduler, to which the replica attaches and a worker connects."""
        config = SchedulerConfig(
            self.queue,
            self.plans_in_flight,
            self.max_unread_bytes,
            order=self.order,
            victims=self.victims,
            share=self.share,
            pace=self.pace,
            run_ahead_s=self.run_ahead_s,
        )
        self.scheduler = Scheduler(config, self.observer, seed=b"test" * 8)
        self.replica: Attachment = self.scheduler.attach("replica", lambda: None, self.now)
        self.results.clear()
        self.start_worker()

    def restart_scheduler(self, live: Iterable[int]) -> None:
        """The scheduler dies and comes back; the replica submits what is live anew, with what it received."""
        self.start_scheduler()
        for stream_id in live:
            submission = self.submissions[stream_id]
            choices = self.received[stream_id].choices
            again = replace(
                submission,
                priors={i: array("I", c.ids) for i, c in enumerate(choices) if c.ids and c.finished is None},
                finished=frozenset(i for i, choice in enumerate(choices) if choice.finished is not None),
            )
            self._note(stream_id, self.scheduler.submit(self.replica, again, self.now))

    def start_worker(self, limits: WorkerLimits | None = None) -> None:
        """An empty worker connects."""
        self.limits = limits or self.limits
        self.worker = FakeWorker(
            self.limits.num_blocks,
            self.limits.block_size,
            self.limits.max_num_seqs,
            self.limits.max_num_batched_tokens,
            self.limits.vocab_size,
            sliding_window=self.limits.sliding_window,
            max_draft_tokens=self.limits.max_draft_tokens,
        )
        self.seats: Worker = self.scheduler.connect("worker", self.limits, self.now)
        """The worker as the scheduler sees it."""

    def kill_worker(self) -> None:
        """The worker dies with what was in flight, and stays away."""
        self.results.clear()
        self.scheduler.lose(self.seats, self.now)

    @property
    def connected(self) -> bool:
        """Whether the worker is there."""
        return self.seats.name in self.scheduler.state.workers

    def submit(
        self,
        stream_id: int,
        prompt: Sequence[int],
        max_tokens: int = 8,
        script: Script = BY_LENGTH,
        **more: object,
    ) -> Received:
        """A request of the replica; ``more`` are fields of ``Submission``."""
        submission = Submission(
            stream_id=stream_id,
            request_id=f"request-{stream_id}",
            prompt=array("I", prompt),
            max_tokens=max_tokens,
            params=script,
            stop_token_ids=frozenset({EOS}),
        )
        self.submissions[stream_id] = submission = replace(submission, **more)  # type: ignore[arg-type]
        received = self.received[stream_id] = Received(others={i: Received() for i in range(1, submission.n)})
        self._note(stream_id, self.scheduler.submit(self.replica, submission, self.now))
        return received

    def _note(self, stream_id: int, request: Request | None) -> None:
        if request is not None:
            self.numbers.update((sequence.number, stream_id) for sequence in request.sequences.values())

    def cancel(self, stream_id: int) -> None:
        """The request's client goes away."""
        self.scheduler.cancel(self.replica, stream_id, self.now)

    def turn(self) -> bool:
        """Plan as far ahead as allowed, then take one result in; false when there was nothing to do."""
        self.now += 1
        planned = self.plan_ahead()
        return self.take_result() or planned

    def plan_ahead(self) -> bool:
        """Send every plan that may be sent now; false when there was none."""
        made = len(self.plans)
        self.scheduler.expire(self.now)
        while self.connected and (plan := self.scheduler.plan(self.seats, self.now)) is not None:
            self.plans.append(plan)
            self.results.append(self.worker.step(plan))
        return len(self.plans) > made

    def take_result(self) -> bool:
        """Take the next result in and read what it brought; false when none is due."""
        due = bool(self.results)
        if due:
            self.scheduler.apply(self.seats, self.results.popleft(), self.now)
        if self.check_every_step:
            check_sums(self.scheduler.state)
        self.read()
        return due

    def read(self) -> None:
        """The replica reads all that waits for it."""
        batch = self.replica.outbox.drain()
        start = 0
        rows = list(zip(batch.stream_ids, batch.indexes, strict=True))
        assert len(set(rows)) == len(rows), "a choice has two rows in one message"
        for (stream_id, index), offset, count in zip(rows, batch.offsets, batch.counts, strict=True):
            ids = self.received[stream_id].choices[index].ids
            assert offset == len(ids), f"ids of request {stream_id} come at {offset}, {len(ids)} are there"
            ids += batch.token_ids[start : start + count]
            start += count
        for finished in batch.finished:
            choice = self.received[finished.stream_id].choices[finished.index]
            assert choice.finished is None, "a choice ends twice"
            choice.finished = finished
        for stream_id, failure in batch.failed:
            assert not self.received[stream_id].ended, "a request ends twice"
            self.received[stream_id].failure = failure

    def run(self, max_turns: int = 10_000) -> int:
        """Turn until nothing is left to do; returns the number of turns."""
        for turns in range(max_turns):
            if not self.turn():
                check_all(self.scheduler.state)
                return turns
        raise AssertionError(f"still busy after {max_turns} turns: {self.scheduler.load()}")

    def assert_empty(self) -> None:
        """No trace of any request is left."""
        state = self.scheduler.state
        check_all(state)
        assert not state.requests
        assert not state.num_running
        assert not state.num_parked
        assert not self.replica.requests
        assert len(state.waiting) == 0
        assert len(state.deadlines) == 0
        assert state.waiting.num_tokens == state.waiting.fresh_tokens == state.waiting.num_fresh == 0
        assert not self.replica.outbox
        assert state.workers
        for worker in state.workers.values():
            pool = worker.cache.pool
            assert pool.num_used == 0
            assert pool.num_free + pool.num_cached == pool.num_blocks
            assert worker.cache.promised == 0
