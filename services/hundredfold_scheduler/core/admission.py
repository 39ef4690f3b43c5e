"""Admission of one waiting sequence, as a transaction: look, decide, then take everything or nothing."""

from __future__ import annotations

import enum

from hundredfold_scheduler.core.observer import Observer
from hundredfold_scheduler.core.request import Sequence, Status
from hundredfold_scheduler.core.state import State, Worker


@enum.unique
class Verdict(enum.Enum):
    """What became of a candidate."""

    ADMITTED = "admitted"
    NO_MEMORY = "does not fit beside the running ones"
    HAS_TO_BE_ALONE = "runs alone, and others run"


class Admission:
    """Says whether a sequence fits, and seats it."""

    def __init__(self, state: State, observer: Observer) -> None:
        self._state = state
        self._observer = observer

    def try_admit(self, sequence: Sequence, worker: Worker, budget: int, now: float) -> Verdict:
        """Seat a popped candidate, with room for up to ``budget`` of its tokens; or change nothing.

        The prefix cache is asked now, not when the sequence was queued, and the blocks found are held before
        any other is taken: so what is counted as cached is what the worker will read. A prompt is admitted
        only when all of it has room, and the room that its later chunks need is set aside.
        """
        running = self._state.running
        if sequence.solo and running:
            return Verdict.HAS_TO_BE_ALONE
        cache = worker.cache
        hits = cache.match(sequence)
        missing = cache.blocks_for(min(sequence.total + 1, sequence.last_needed)) - len(hits)
        if running and missing + cache.revived(hits) > cache.num_unpromised - self.headroom():
            return Verdict.NO_MEMORY

        cached = len(hits) * cache.block_size
        chunk = min(sequence.total - cached, budget)
        cache.adopt(sequence, hits, promised=missing)
        if not cache.grow(sequence, cached + chunk):
            cache.release(sequence)
            sequence.reset()
            return Verdict.NO_MEMORY
        self._seat(sequence, worker, cached, now)
        return Verdict.ADMITTED

    def headroom(self) -> int:
        """Blocks left free for those that run, half a block each. With none a newcomer soon is the next
        victim; with a whole one seats stay empty for longer than the recomputation saved is worth.
        """
        return len(self._state.running) // 2

    def _seat(self, sequence: Sequence, worker: Worker, cached: int, now: float) -> None:
        state = self._state
        request = sequence.request
        sequence.queue_entry = None
        sequence.status = Status.RUNNING
        sequence.slot = worker.slots.take()
        sequence.bypassed = 0
        state.running[sequence.number] = sequence
        state.totals.cached_tokens += cached
        if not sequence.first_token_at:
            # Of a prompt that is begun again, what counts is the run that leads to its first token.
            request.cached_tokens = min(cached, sequence.prompt_len)
        if not request.first_step_at:
            request.first_step_at = now
        self._observer.admitted(sequence, cached)
