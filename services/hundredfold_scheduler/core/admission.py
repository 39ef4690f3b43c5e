"""Admission of one waiting sequence, as a transaction: look, decide, then take everything or nothing."""

from __future__ import annotations

import enum
from collections.abc import Callable
from heapq import nsmallest

from hundredfold_scheduler.core.beam_group import BeamGroup
from hundredfold_scheduler.core.budget import Budget
from hundredfold_scheduler.core.fair_room import FairRoom
from hundredfold_scheduler.core.limits import WorkerLimits
from hundredfold_scheduler.core.observer import Observer
from hundredfold_scheduler.core.request import Sequence, Status
from hundredfold_scheduler.core.routing import Given, Place, Router, fill
from hundredfold_scheduler.core.siblings import let_go
from hundredfold_scheduler.core.state import State
from hundredfold_scheduler.core.worker import Worker

PATIENCE_S = 2.0
"""A worker that is late by more gets no preference: what would have gone there goes to another."""

PATIENCE_PLANS = 8
"""Plans that a busy worker leaves a sequence to another for, which has room for it and does not seat it."""

MAX_WEIGHED = 8
"""Other workers that are weighed for one candidate, the emptiest ones: a thousand cost no more than these."""


@enum.unique
class Verdict(enum.Enum):
    """What became of a candidate."""

    ADMITTED = "admitted"
    NO_ROOM = "does not fit beside the running ones, or has to be alone"
    LEFT = "fits nowhere, and another worker is nearest to having room for it"
    KEPT = "fits, but into what is kept for owners that hold less"
    TOO_LONG = "has to wait for the long prompt that is under way"
    ELSEWHERE = "another worker is the place for it"


class Admission:
    """Says where a sequence goes, and seats it."""

    def __init__(self, state: State, router: Router, fair_room: FairRoom, observer: Observer) -> None:
        self._state = state
        self._router = router
        self._given = Given()
        self._others: list[Worker] = []
        """The other workers that take new sequences, during a look at the queue."""
        self._open: list[Worker] = []
        """Those of them that have seats."""
        self._scarce = False
        """Whether they have fewer seats than wait: then nothing is left to them for balance alone."""
        self._nearest: dict[Callable[[Worker], Nearness], dict[WorkerLimits, Nearness]] = {}
        """Of the others of each kind the one that is nearest to having room, by what room is measured by."""
        self._fair_room = fair_room
        self._observer = observer

    @property
    def num_owners(self) -> int:
        """Owners that asked for something lately."""
        return self._fair_room.num_owners

    @property
    def shares(self) -> bool:
        """Whether several owners are there, so that room is kept for those who hold little."""
        return self.num_owners > 1

    def has_claim(self, sequence: Sequence, worker: Worker) -> bool:
        """Whether several owners are there and this one's holds no more than its share."""
        if not self.shares:
            return False
        num_blocks = worker.cache.blocks_for(sequence.total + 1)
        return self._fair_room.has_claim(sequence, worker, num_blocks)

    def begin_look(self, worker: Worker, now: float) -> None:
        """A worker looks at the queue. O(workers)."""
        self._given.begin()
        self._others = [
            other
            for other in self._state.workers.values()
            if other is not worker and other.takes_new and not other.is_late(now, PATIENCE_S)
        ]
        self._nearest.clear()
        self._open = [other for other in self._others if other.slots.num_free and not other.runs_solo]
        self._scarce = len(self._state.waiting) >= sum(other.slots.num_free for other in self._open)

    def can_hold(self, sequence: Sequence, worker: Worker) -> bool:
        """Whether the sequence and its whole answer fit the worker when it is empty. O(1)."""
        return worker.limits.holds(sequence.prompt_len, sequence.max_tokens, _seats(sequence))

    def try_admit(
        self, sequence: Sequence, worker: Worker, budget: Budget, longest: int, now: float
    ) -> Verdict:
        """Seat a popped candidate that has at most ``longest`` tokens to compute, with room for its first
        chunk, of a token at least; or change nothing.

        The prefix cache is asked now, not when the sequence was queued, and the blocks found are held before
        any other is taken: so what is counted as cached is what the worker will read. A prompt is admitted
        only when all of it has room, and the room that its later chunks need is set aside.
        """
        place = self._find(sequence, worker)
        if len(self._state.workers) > 1:
            verdict = self._weigh(sequence, worker, place)
            if verdict is not Verdict.ADMITTED:
                return verdict
        if place is None:
            return Verdict.NO_ROOM
        cache = worker.cache
        cached = place.num_cached
        if sequence.total - cached > longest:
            return Verdict.TOO_LONG
        num_blocks = place.missing + cache.revived(sequence, place.hits)
        room = cache.num_unpromised - self.headroom(worker)
        if worker.running and self._fair_room.keeps_from(sequence, worker, num_blocks, room, now):
            return Verdict.KEPT
        cache.adopt(sequence, place.hits, promised=place.missing)
        if not cache.grow(sequence, cached + max(1, budget.chunk(cached, sequence.total - cached))):
            cache.release(sequence)
            sequence.reset()
            return Verdict.NO_ROOM
        self._given.seated(place, sequence.total - cached)
        self._seat(sequence, worker, cached, now)
        return Verdict.ADMITTED

    def headroom(self, worker: Worker) -> int:
        """Blocks left free for those that run, half a block each. With none a newcomer soon is the next
        victim; with a whole one seats stay empty for longer than the recomputation saved is worth.
        """
        return len(worker.running) // 2

    def _find(self, sequence: Sequence, worker: Worker) -> Place | None:
        """The place that a worker has for a sequence now."""
        seats = _seats(sequence)
        if seats > worker.slots.num_free:
            return None
        if not self.can_hold(sequence, worker):
            return None
        running = worker.running
        if sequence.solo and running:
            return None
        cache = worker.cache
        hits = cache.match(sequence)
        missing = cache.blocks_for(min(sequence.total + 1, sequence.last_needed)) - len(hits)
        if running and missing + cache.revived(sequence, hits) > cache.num_unpromised - self.headroom(worker):
            return None
        return Place(worker, hits, missing, *self._given.to(worker))

    def _weigh(self, sequence: Sequence, worker: Worker, place: Place | None) -> Verdict:
        """Whether this worker is the one, when there are others."""
        others = self._open
        if self._scarce and place is not None:
            others = [other for other in others if other.cache.knows(sequence)]
        if len(others) > MAX_WEIGHED:
            others = nsmallest(MAX_WEIGHED, others, key=fill)
        found = (self._find(sequence, other) for other in others)
        places = [there for there in (place, *found) if there is not None]
        if places:
            chosen = places[0] if len(places) == 1 else self._router.choose(sequence, places)
            if chosen is place or (place is not None and _was_refused(sequence, worker, chosen.worker)):
                return Verdict.ADMITTED
            _note_left(sequence, chosen.worker)
            self._given.left(chosen, sequence.total - chosen.num_cached)
            return Verdict.ELSEWHERE
        return Verdict.NO_ROOM if self._is_nearest(sequence, worker) else Verdict.LEFT

    def _is_nearest(self, sequence: Sequence, worker: Worker) -> bool:
        """Whether this worker makes room for a sequence that fits nowhere: one does, the rest go on. O(kinds
        of workers), and for the first such sequence of a look O(workers).
        """
        measure = _measure(sequence)
        nearest = self._nearest.get(measure)
        if nearest is None:
            nearest = self._nearest[measure] = {}
            for other in self._others:
                there = measure(other)
                nearest[other.limits] = max(there, nearest.get(other.limits, there))
        here, seats = measure(worker), _seats(sequence)
        return all(
            there < here
            for limits, there in nearest.items()
            if limits.holds(sequence.prompt_len, sequence.max_tokens, seats)
        )

    def _seat(self, sequence: Sequence, worker: Worker, cached: int, now: float) -> None:
        self._state.waiting.seat(sequence, sequence.total - cached)
        sequence.status = Status.RUNNING
        sequence.worker = worker
        sequence.slot = worker.slots.take()
        sequence.bypassed = 0
        sequence.left_to = None
        worker.running[sequence.number] = sequence
        if sequence.started:
            # It may have unread ids from another worker: what this one brings is not to lie beside them.
            sequence.outbox.fold()
        self._state.totals.cached_tokens += cached
        if not sequence.first_token_at:
            # Of a prompt that is begun again, what counts is the run that leads to its first token.
            sequence.cached_tokens = min(cached, sequence.prompt_len)
        if not sequence.first_step_at:
            sequence.first_step_at = now
        if sequence.beams is not None:
            self._seat_beams(sequence.beams, worker)
        self._observer.admitted(sequence, cached)

    def _seat_beams(self, group: BeamGroup, worker: Worker) -> None:
        """The first member has its seat; the others sit down beside it, and wait for it."""
        worker.beams[group.lead.number] = group
        group.rest_until_started()
        for member in group.members[1:]:
            let_go(self._state, member)
            member.status = Status.RUNNING
            member.worker = worker
            member.slot = worker.slots.take()
            member.level = group.lead.level
            worker.running[member.number] = member


def _note_left(sequence: Sequence, worker: Worker) -> None:
    """Remember since which of its plans a sequence is left to a worker."""
    left = sequence.left_to
    if left is None or left[0] != worker.name or left[1] > worker.planned:
        sequence.left_to = worker.name, worker.planned


def _was_refused(sequence: Sequence, worker: Worker, chosen: Worker) -> bool:
    """Whether a worker need not leave a sequence to a busy one: that one has planned since it was left to it,
    and has not seated it, whatever the reason. An idle worker waits for one such plan, for here it starts at
    once; a busy one for several, for it may only have been another's turn.
    """
    if not chosen.running or sequence.left_to is None:
        return False
    name, planned = sequence.left_to
    return name == chosen.name and chosen.planned - planned > (PATIENCE_PLANS if worker.running else 0)


Nearness = tuple[int, int, str]
"""How near a worker is to having room for what it has none for; the name decides between equals."""


def _measure(sequence: Sequence) -> Callable[[Worker], Nearness]:
    """What a sequence that fits nowhere waits for most."""
    if sequence.solo:
        return _by_company
    return _by_memory if sequence.beams is None else _by_seats


def _by_company(worker: Worker) -> Nearness:
    return -len(worker.running), 0, worker.name


def _by_memory(worker: Worker) -> Nearness:
    # One that has to be alone is not joined, whatever it leaves free.
    return -1 if worker.runs_solo else worker.cache.num_unpromised, 0, worker.name


def _by_seats(worker: Worker) -> Nearness:
    free = -1 if worker.runs_solo else worker.slots.num_free
    return free, worker.cache.num_unpromised, worker.name


def _seats(sequence: Sequence) -> int:
    """Seats that it needs at once."""
    return 1 if sequence.beams is None else len(sequence.beams.members)
