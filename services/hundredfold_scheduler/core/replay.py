"""A worker comes or dies: requests outlive it, its blocks and slots do not."""

from __future__ import annotations

from hundredfold_scheduler.core.block_hash import BlockHasher
from hundredfold_scheduler.core.cache import Cache
from hundredfold_scheduler.core.ending import Ending
from hundredfold_scheduler.core.failures import Code, Failure
from hundredfold_scheduler.core.intake import never_fits
from hundredfold_scheduler.core.limits import WorkerLimits
from hundredfold_scheduler.core.observer import Observer
from hundredfold_scheduler.core.preemption import requeue
from hundredfold_scheduler.core.request import MAX_DEATHS, Request
from hundredfold_scheduler.core.slots import Slots
from hundredfold_scheduler.core.state import State, Worker


class Replay:
    """Connects and loses the worker. Both are O(all requests), and rare."""

    def __init__(self, state: State, seed: bytes, ending: Ending, observer: Observer) -> None:
        self._state = state
        self._seed = seed
        self._ending = ending
        self._observer = observer

    def connect(self, limits: WorkerLimits, now: float) -> None:
        """An empty worker is there. Waiting requests that it can never serve end."""
        hasher = BlockHasher(self._seed, limits.model_fingerprint, limits.block_size)
        self._state.worker = Worker(limits, Cache(limits.num_blocks, hasher), Slots(limits.max_num_seqs))
        for sequence in self._state.waiting.items():
            sequence.block_hashes = []
            sequence.root_hash = b""
            self.settle(sequence.request, limits, now)

    def settle(self, request: Request, limits: WorkerLimits, now: float) -> None:
        """Hold a waiting request against a worker's limits: cut its output to what can be, and end it now if
        it can never run or, resumed, has nothing left to do.
        """
        sequence = request.sequence
        prompt = request.submission.prompt
        misfit = never_fits(prompt, sequence.num_output, limits)
        if misfit is not None:
            self._ending.fail(request, misfit, now)
            return
        sequence.set_max_tokens(min(request.submission.max_tokens, limits.room_for_output(len(prompt))))
        ended = sequence.ended_already()
        if ended is not None:
            self._ending.finish(request, *ended, now)

    def lose(self, now: float) -> None:
        """The worker is gone. What ran goes to the front of the queue with its outputs kept, or ends if
        workers keep dying of it.
        """
        state = self._state
        ran = [*state.running.values(), *state.parked.values()]
        state.running.clear()
        state.parked.clear()
        state.worker = None
        state.totals.worker_losses += 1
        for sequence in ran:
            sequence.deaths += 1
            requeue(state, sequence)
            if sequence.deaths >= MAX_DEATHS:
                message = f"the request was running when a worker failed, {MAX_DEATHS} times"
                self._ending.fail(sequence.request, Failure(Code.INTERNAL, message), now)
            else:
                state.totals.replays += 1
                self._observer.replayed(sequence)
