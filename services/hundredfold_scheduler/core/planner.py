"""Makes the next plan: computed tokens chase total tokens under one budget, running sequences before waiting
ones.
"""

from __future__ import annotations

from hundredfold_scheduler.core.admission import Admission, Verdict
from hundredfold_scheduler.core.preemption import Preemption
from hundredfold_scheduler.core.request import Sequence, Status
from hundredfold_scheduler.core.state import InFlight, State, Worker
from hundredfold_scheduler.core.step import NewSequence, StepPlan

MAX_CANDIDATES = 32
"""Waiting sequences examined per step: the cost of a step does not grow with the queue."""
MAX_BYPASSES = 32
"""Admissions that may overtake the first in line for want of memory; then all wait until it fits."""

_RUNNING = Status.RUNNING


class Planner:
    """One plan per call. Amounts are upper bounds: a plan may be made before the result of the one before is
    in.
    """

    def __init__(self, state: State, admission: Admission, preemption: Preemption) -> None:
        self._state = state
        self._admission = admission
        self._preemption = preemption
        self._budget = 0
        self._rows: list[Sequence] = []
        self._new: list[Sequence] = []
        self._short_of_memory = False
        """A running sequence had to wait or to give way in this plan."""
        self._stuck: tuple[int, int] | None = None
        """Queue version and room at the last look at the queue, when nothing fitted."""

    def plan(self, worker: Worker, now: float) -> StepPlan | None:
        """The next step, or ``None`` when nothing can be done before a result or a request comes in."""
        self._budget = worker.limits.max_num_batched_tokens
        self._rows, self._new = [], []
        self._short_of_memory = False
        for sequence in self._plan_decodes(worker):
            self._plan_prefill(sequence, worker)
        if not self._short_of_memory:
            self._admit(worker, now)
        rows = self._rows
        if self._short_of_memory:
            # A row that was planned early may have given way to a later one.
            rows = [s for s in rows if s.status is _RUNNING]
        if not rows and (worker.in_flight or not worker.slots.any_to_release):
            return None
        return self._commit(worker, rows, now)

    def _plan_decodes(self, worker: Worker) -> list[Sequence]:
        """Plan every running sequence that has one token to compute; returns those that have more."""
        rows = self._rows
        prefills = []
        for sequence in list(self._state.running.values()):
            reserved = sequence.computed + sequence.pending
            left = min(sequence.total + sequence.pending_samples, sequence.last_needed) - reserved
            if left == 1:
                if sequence.capacity > reserved or self._make_room(sequence, reserved + 1, worker):
                    sequence.chunk = 1
                    rows.append(sequence)
            elif left > 1:
                prefills.append(sequence)
        self._budget -= len(rows)
        return prefills

    def _plan_prefill(self, sequence: Sequence, worker: Worker) -> None:
        """Plan the next chunk of a running sequence's known tokens."""
        if sequence.status is not _RUNNING or self._budget <= 0:
            return
        reserved = sequence.computed + sequence.pending
        left = min(sequence.total + sequence.pending_samples, sequence.last_needed) - reserved
        chunk = min(left, self._budget)
        if worker.cache.room(sequence) > reserved:
            chunk = min(chunk, worker.cache.room(sequence) - reserved)
        else:
            chunk = 1
        if self._make_room(sequence, reserved + chunk, worker):
            sequence.chunk = chunk
            self._rows.append(sequence)
            self._budget -= chunk

    def _make_room(self, sequence: Sequence, num_tokens: int, worker: Worker) -> bool:
        """Let the sequence's table hold ``num_tokens``, if need be at others' cost; false when it has to wait
        or was a victim itself in this plan.
        """
        if sequence.status is not _RUNNING:
            return False
        while not worker.cache.grow(sequence, num_tokens):
            self._short_of_memory = True
            victim = self._preemption.next_victim(sequence)
            if victim is None:
                return False
            self._budget += victim.chunk
            self._preemption.preempt(victim)
        return True

    def _admit(self, worker: Worker, now: float) -> None:
        """Seat waiting sequences in their order while seats, budget and memory last."""
        state = self._state
        waiting = state.waiting
        if not self._can_admit(worker):
            return
        look = (waiting.version, worker.cache.num_unpromised - self._admission.headroom())
        if (
            self._stuck is not None
            and state.running
            and self._stuck[0] == look[0]
            and self._stuck[1] >= look[1]
        ):
            return
        passed_over: list[Sequence] = []
        for _ in range(MAX_CANDIDATES):
            sequence = waiting.pop()
            if sequence is None:
                break
            if self._admission.try_admit(sequence, worker, self._budget, now) is Verdict.ADMITTED:
                self._rows.append(sequence)
                self._new.append(sequence)
                self._budget -= sequence.chunk
                if passed_over:
                    passed_over[0].bypassed += 1
            else:
                passed_over.append(sequence)
            if passed_over and passed_over[0].bypassed >= MAX_BYPASSES:
                break
            if not self._can_admit(worker):
                break
        for sequence in passed_over:
            waiting.restore(sequence)
        self._stuck = look if passed_over and not self._new else None

    def _can_admit(self, worker: Worker) -> bool:
        running = self._state.running
        if self._budget <= 0 or not len(self._state.waiting) or not worker.slots.num_free:
            return False
        # One that has to be alone is alone, once seated.
        return len(running) != 1 or not next(iter(running.values())).solo

    def _commit(self, worker: Worker, rows: list[Sequence], now: float) -> StepPlan:
        """Write the plan down, and in each sequence what it may become."""
        worker.steps += 1
        plan = StepPlan(worker.steps, released_slots=worker.slots.take_released())
        for sequence in self._new:
            plan.new_sequences.append(_introduce(sequence))
        slots, num_tokens, num_samples = plan.slots, plan.num_tokens, []
        for sequence in rows:
            chunk = sequence.chunk
            sequence.chunk = 0
            sequence.pending += chunk
            sequence.in_flight += 1
            samples = int(sequence.computed + sequence.pending == sequence.total + sequence.pending_samples)
            sequence.pending_samples += samples
            slots.append(sequence.slot)
            num_tokens.append(chunk)
            num_samples.append(samples)
            blocks = sequence.blocks
            if sequence.told_blocks < len(blocks):
                plan.grown_slots.append(sequence.slot)
                plan.grown_counts.append(len(blocks) - sequence.told_blocks)
                plan.grown_block_ids.extend(blocks[sequence.told_blocks :])
                sequence.told_blocks = len(blocks)
        worker.in_flight.append(InFlight(worker.steps, rows, num_tokens, num_samples, now))
        return plan


def _introduce(sequence: Sequence) -> NewSequence:
    """A sequence that was admitted in this plan, as the worker meets it."""
    submission = sequence.request.submission
    sequence.told_blocks = len(sequence.blocks)
    return NewSequence(
        slot=sequence.slot,
        sequence_id=sequence.number,
        prompt=sequence.tokens[: sequence.prompt_len],
        output=sequence.tokens[sequence.prompt_len :],
        block_ids=list(sequence.blocks),
        num_computed_tokens=sequence.computed,
        max_tokens=sequence.max_tokens,
        params=submission.params,
        prompt_is_scored=sequence.scored_to >= sequence.prompt_len,
        choice_index=sequence.choice_index,
        traceparent=submission.traceparent,
    )
