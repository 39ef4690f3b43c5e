"""All that the scheduler holds at one moment; the other files of the core are what changes it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hundredfold_scheduler.core.cache import Cache
from hundredfold_scheduler.core.finish_rate import FinishRate
from hundredfold_scheduler.core.lazy_heap import LazyHeap
from hundredfold_scheduler.core.limits import WorkerLimits
from hundredfold_scheduler.core.request import Attachment, Request, Sequence
from hundredfold_scheduler.core.slots import Slots
from hundredfold_scheduler.core.waiting import WaitingQueue


@dataclass(frozen=True, slots=True)
class InFlight:
    """A plan whose result is not in. Row ``i`` of the result belongs to ``rows[i]``."""

    step: int
    rows: list[Sequence]
    num_tokens: list[int]
    num_samples: list[int]
    """Ids that each row may bring: 1 when it reaches its last known token, else 0."""
    sent_at: float


@dataclass(slots=True)
class Worker:
    """What is known of the connected worker incarnation; dropped as a whole when it dies."""

    limits: WorkerLimits
    cache: Cache
    slots: Slots
    in_flight: deque[InFlight] = field(default_factory=deque)
    planned: int = 0
    """Number of the last plan made on this stream."""
    applied: int = 0
    """Number of the last result taken in."""


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
    recomputed_tokens: int = 0
    cached_tokens: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    replays: int = 0
    worker_losses: int = 0


@dataclass(slots=True)
class State:
    """Requests by every key they are looked up by, and the worker."""

    waiting: WaitingQueue
    running: dict[int, Sequence] = field(default_factory=dict)
    """By sequence number, in the order of admission."""
    parked: dict[int, Sequence] = field(default_factory=dict)
    """Preempted ones whose last result is not in."""
    requests: dict[str, Request] = field(default_factory=dict)
    """Live requests by public id."""
    attachments: dict[str, Attachment] = field(default_factory=dict)
    """By replica."""
    deadlines: LazyHeap[Request] = field(default_factory=LazyHeap)
    worker: Worker | None = None
    totals: Totals = field(default_factory=Totals)
    finish_rate: FinishRate = field(default_factory=FinishRate)
    submitted: int = 0
    """Sequences numbered so far."""
