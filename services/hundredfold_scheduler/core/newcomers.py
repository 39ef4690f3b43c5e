"""A look at the waiting queue: seats those that fit, in their order, and says who may overtake whom."""

from __future__ import annotations

from dataclasses import dataclass, field

from hundredfold_scheduler.core.admission import Admission, Verdict
from hundredfold_scheduler.core.budget import Budget
from hundredfold_scheduler.core.request import Sequence
from hundredfold_scheduler.core.state import State
from hundredfold_scheduler.core.worker import Outlook, Worker

MAX_CANDIDATES = 32
"""Waiting sequences examined per step: the cost of a step does not grow with the queue."""
MAX_UNFIT = 128
"""Beside them such as only a larger worker holds: they are passed over at a glance."""
MAX_BYPASSES = 32
"""Admissions that may overtake the first in line for want of memory; then all wait until it fits."""
MAX_CLAIMS = 2 * MAX_BYPASSES
"""The same for owners that hold less than their equal share: they take from what is kept for them."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What newcomers may have in a step."""

    budget: Budget
    """What is left of it."""
    longest: int
    """Longest prompt, in tokens to be computed, that may start."""
    claims_only: bool
    """Whether memory is so short that nobody starts but owners who hold little, from what is kept."""


@dataclass(slots=True)
class _Look:
    """What a look at the queue has come to so far."""

    terms: Terms
    longest: int
    seated: list[tuple[Sequence, int]] = field(default_factory=list)
    """Each with the tokens that it computes in this step."""
    no_room: list[Sequence] = field(default_factory=list)
    """They wait for memory: others may overtake them, so and so often."""
    put_off: list[Sequence] = field(default_factory=list)
    """They wait for something else, and hold up nobody but their own line."""
    elsewhere: list[Sequence] = field(default_factory=list)
    """Another worker seats them."""
    left: list[Sequence] = field(default_factory=list)
    """Another worker makes room for them."""
    unfit: list[Sequence] = field(default_factory=list)
    """Only a larger worker holds them."""
    num_weighed: int = 0

    @property
    def overtaken(self) -> int:
        """How often the first that waits for memory was overtaken."""
        return self.no_room[0].bypassed if self.no_room else 0

    def claims_only(self, sequence: Sequence) -> bool:
        """Whether a candidate needs a claim on what is kept. What was begun once waits for its memory, and
        nobody who never ran takes it meanwhile.
        """
        if self.terms.claims_only or self.overtaken >= MAX_BYPASSES:
            return True
        passed = (*self.no_room, *self.put_off)
        return not sequence.started and any(earlier.started for earlier in passed)


class Newcomers:
    """Seats waiting sequences."""

    def __init__(self, state: State, admission: Admission) -> None:
        self._state = state
        self._admission = admission

    @property
    def num_owners(self) -> int:
        """Owners that asked for something lately."""
        return self._admission.num_owners

    def can_seat(self, worker: Worker) -> bool:
        """Whether a look at the queue can come to anything."""
        if not worker.takes_new or not len(self._state.waiting) or not worker.slots.num_free:
            return False
        # One that has to be alone is alone, once seated.
        return not worker.runs_solo

    def seat(self, worker: Worker, terms: Terms, now: float) -> list[tuple[Sequence, int]]:
        """Seat what fits, each with the tokens that it computes in this step: all that the budget allows, but
        of a prompt that is longer only a quarter of it while others wait.
        """
        waiting = self._state.waiting
        waiting.age(now)
        self._admission.begin_look(worker, now)
        if terms.claims_only and not self._admission.shares:
            return []
        look = _Look(terms, terms.longest)
        outlook = self._outlook(worker, terms)
        if worker.running and worker.stuck is not None and outlook.is_no_better_than(worker.stuck):
            return []
        while look.num_weighed < MAX_CANDIDATES and len(look.unfit) < MAX_UNFIT:
            if terms.budget.most(0) <= 0 or not self.can_seat(worker):
                break
            sequence = waiting.pop()
            if sequence is None or not self._examine(sequence, look, worker, now):
                break
        passed = (*look.no_room, *look.put_off, *look.left)
        for sequence in (*passed, *look.unfit, *look.elsewhere):
            waiting.restore(sequence)
        nothing_fits = bool(passed or look.unfit) and not look.seated and not look.elsewhere
        worker.stuck = outlook if nothing_fits else None
        if nothing_fits:
            missing = map(worker.cache.first_missing, passed)
            worker.cache.index.await_only(digest for digest in missing if digest is not None)
        return look.seated

    def _outlook(self, worker: Worker, terms: Terms) -> Outlook:
        return Outlook(
            version=self._state.waiting.version,
            num_owners=self._admission.num_owners,
            room=worker.cache.num_unpromised - self._admission.headroom(worker),
            seats=worker.slots.num_free,
            longest=terms.longest,
            claims_only=terms.claims_only,
            arrived=worker.cache.index.num_arrived,
        )

    def _examine(self, sequence: Sequence, look: _Look, worker: Worker, now: float) -> bool:
        """Seat a candidate or pass it over; false when nobody behind it may go before it."""
        admission = self._admission
        if not admission.can_hold(sequence, worker):
            look.unfit.append(sequence)
            return True
        look.num_weighed += 1
        if look.claims_only(sequence) and not admission.has_claim(sequence, worker):
            self._put_off(sequence, look)
            return admission.shares
        budget = look.terms.budget
        is_shared = sequence.total > budget.most(0) and len(self._state.waiting) > 0
        own = budget.set_apart(4) if is_shared else budget
        verdict = admission.try_admit(sequence, worker, own, look.longest, now)
        if verdict is Verdict.ADMITTED:
            reserved = sequence.reserved
            left = sequence.total - reserved
            chunk = max(1, own.chunk(reserved, left))
            look.seated.append((sequence, chunk))
            own.spend(reserved, chunk)
        if is_shared:
            budget.add(own)
        if verdict is Verdict.ADMITTED:
            if chunk < left:
                look.longest = min(look.longest, max(budget.most(0), (left - chunk) // 2))
            if look.no_room:
                look.no_room[0].bypassed += 1
        elif verdict is Verdict.ELSEWHERE:
            look.elsewhere.append(sequence)
        elif verdict is Verdict.LEFT:
            look.left.append(sequence)
        elif verdict is Verdict.NO_ROOM:
            look.no_room.append(sequence)
        else:
            self._put_off(sequence, look)
        return look.overtaken < (MAX_CLAIMS if admission.shares else MAX_BYPASSES)

    def _put_off(self, sequence: Sequence, look: _Look) -> None:
        """Pass a candidate over, and with it all that came after it in its line."""
        look.put_off.append(sequence)
        self._state.waiting.set_aside(sequence)
