"""Room beyond the next token of rows that decode: for passes that follow in the same plan, and for drafts."""

from __future__ import annotations

from hundredfold_scheduler.core.preemption import Preemption
from hundredfold_scheduler.core.request import Sequence
from hundredfold_scheduler.core.step_cost import Work
from hundredfold_scheduler.core.worker import Worker

MAX_REPEATS = 15
REST_S, MOST_REST_S = 0.00125, 0.1
"""A quarter of what the text of each stream rests at a door anyway: where many run, a plan may go on for so
long, but not so long that a client notices how late it hears of an end.
"""


class Ahead:
    """What is reserved here nobody else wants: it takes no block that was promised or is kept for others."""

    def __init__(self, preemption: Preemption, run_ahead_s: float) -> None:
        self._preemption = preemption
        self._run_ahead_s = run_ahead_s

    def repeats(self, rows: list[Sequence], decodes: Work, worker: Worker) -> list[int]:
        """Reserve what rows that are alone in a plan compute after the first pass; returns how many each.

        Plan and result of a step cost both services about as much as a step of few rows: so such steps go on
        for a while by themselves. (Multi-step scheduling, as in vLLM since 0.6.) At most twice as many as in
        the plan before: what a step takes may be known badly yet.
        """
        step_s = worker.cost.seconds(decodes)
        ahead_s = max(self._run_ahead_s, min(MOST_REST_S, REST_S * len(rows))) if self._run_ahead_s else 0.0
        most = round(ahead_s / step_s) - 1 if step_s else 0
        most = min(most, 2 * worker.num_repeats + 1, MAX_REPEATS)
        return [self._reserve(sequence, most, worker) for sequence in rows] if most > 0 else []

    def drafts(self, rows: list[Sequence], most: int, worker: Worker) -> list[int]:
        """Reserve what each row may try as drafts, at most ``most``; returns how many."""
        return [
            0 if sequence.beams is not None else self._reserve(sequence, most, worker) for sequence in rows
        ]

    def _reserve(self, sequence: Sequence, most: int, worker: Worker) -> int:
        reserved, cache = sequence.reserved, worker.cache
        count = min(most, sequence.last_needed - reserved)
        if count <= 0:
            return 0
        if sequence.capacity < reserved + count:
            leave = cache.promised + self._preemption.room_kept_from(sequence, worker)
            cache.grow(sequence, reserved + count, leave)
            count = min(count, sequence.capacity - reserved)
        sequence.reserved += count
        sequence.known += count
        return count
