"""All that the scheduler holds at one moment; the other files of the core are what changes it."""

from __future__ import annotations

from dataclasses import dataclass, field

from hundredfold_scheduler.core.finish_rate import FinishRate
from hundredfold_scheduler.core.lazy_heap import LazyHeap
from hundredfold_scheduler.core.limits import KnownLimits
from hundredfold_scheduler.core.request import Attachment, Request
from hundredfold_scheduler.core.waiting import WaitingQueue
from hundredfold_scheduler.core.worker import Worker


@dataclass(slots=True)
class Totals:
    """Counters since start."""

    requests: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    rejected: int = 0
    expired: int = 0
    steps: int = 0
    computed_tokens: int = 0
    prefill_tokens: int = 0
    """Computed tokens of rows that were not decoding."""
    recomputed_tokens: int = 0
    cached_tokens: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    drafted_tokens: int = 0
    """Draft tokens that workers tried."""
    accepted_tokens: int = 0
    """Output tokens beyond the first of their row and step: drafts that were right."""
    preemptions: int = 0
    replays: int = 0
    worker_losses: int = 0
    """Ends of workers that had not said before that they stop."""


@dataclass(slots=True)
class State:
    """Requests by every key they are looked up by, and the workers. What runs is each worker's."""

    waiting: WaitingQueue
    requests: dict[str, Request] = field(default_factory=dict)
    """Live requests by public id."""
    attachments: dict[str, Attachment] = field(default_factory=dict)
    """By replica."""
    deadlines: LazyHeap[Request] = field(default_factory=LazyHeap)
    workers: dict[str, Worker] = field(default_factory=dict)
    """Connected ones by name."""
    known: KnownLimits = field(default_factory=KnownLimits)
    """What a request may hope for: limits of connected workers and of those that may come back."""
    totals: Totals = field(default_factory=Totals)
    num_held: int = 0
    """Sequences that never ran and wait for another of their request."""
    num_held_again: int = 0
    """The same of those that ran before."""
    finish_rate: FinishRate = field(default_factory=FinishRate)
    submitted: int = 0
    """Sequences numbered so far."""

    @property
    def num_running(self) -> int:
        """Sequences that hold seats. May be asked from another thread."""
        return sum(len(worker.running) for worker in list(self.workers.values()))

    @property
    def num_parked(self) -> int:
        """Preempted sequences whose last results are not in."""
        return sum(len(worker.parked) for worker in list(self.workers.values()))

    @property
    def free_seats(self) -> int:
        """Seats that newcomers could take."""
        return sum(worker.slots.num_free for worker in list(self.workers.values()) if worker.takes_new)
