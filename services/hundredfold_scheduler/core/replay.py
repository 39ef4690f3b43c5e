"""A worker comes or goes: requests outlive it, its blocks and slots do not."""

from __future__ import annotations

from hundredfold_scheduler.core.block_hash import BlockHasher
from hundredfold_scheduler.core.cache import Cache
from hundredfold_scheduler.core.ending import Ending
from hundredfold_scheduler.core.failures import Code, Failure
from hundredfold_scheduler.core.intake import never_fits
from hundredfold_scheduler.core.limits import WorkerLimits, beams_apart
from hundredfold_scheduler.core.observer import Observer
from hundredfold_scheduler.core.preemption import requeue
from hundredfold_scheduler.core.request import MAX_DEATHS, Request, Sequence, Status
from hundredfold_scheduler.core.siblings import follow, hold
from hundredfold_scheduler.core.slots import Slots
from hundredfold_scheduler.core.state import State
from hundredfold_scheduler.core.worker import Worker


class Replay:
    """Connects and loses workers. All of it is O(all requests), and rare."""

    def __init__(self, state: State, seed: bytes, ending: Ending, observer: Observer) -> None:
        self._state = state
        self._seed = seed
        self._ending = ending
        self._observer = observer
        self._hashers: dict[tuple[str, int], BlockHasher] = {}
        """One for all workers whose blocks hold the same: a prompt is hashed once for them."""

    def connect(self, name: str, limits: WorkerLimits, now: float) -> Worker:
        """An empty worker is there. Waiting requests that no worker can serve any more end."""
        model = limits.model_fingerprint
        self._hashers = {key: hasher for key, hasher in self._hashers.items() if key[0] == model}
        key = model, limits.block_size
        hasher = self._hashers.setdefault(key, BlockHasher(self._seed, *key))
        cache = Cache(limits.num_blocks, hasher, limits.sliding_window)
        worker = Worker(name, limits, cache, Slots(limits.max_num_seqs))
        self._state.workers[name] = worker
        if self._state.known.see(name, limits):
            self._settle_waiting(now)
        return worker

    def forget(self, name: str, now: float) -> None:
        """A worker that is gone will not come back."""
        if self._state.known.forget(name):
            self._settle_waiting(now)

    def settle(self, request: Request, now: float) -> None:
        """Hold a waiting request against what the known workers can do: cut its output to what can be, and
        end it now if it can never run or, resumed, has nothing left to do.
        """
        submission, group = request.submission, request.beams
        length, beams = len(submission.prompt), 1 if group is None else len(group.members)
        limits = self._state.known.widest(length, beams)
        if limits is None:
            return
        still = [s for s in request.sequences.values() if s.status in (Status.WAITING, Status.HELD)]
        longest = max((sequence.num_output for sequence in still), default=0)
        beams_at_end = beams_apart(beams, submission.max_tokens)
        misfit = never_fits(submission.prompt, longest, limits, beams, beams_at_end)
        if misfit is not None:
            self._ending.fail(request, misfit, now)
            return
        max_tokens = min(submission.max_tokens, limits.room_for_output(length, beams_at_end))
        if group is not None:
            if group.lead in still:
                group.set_max_tokens(max_tokens)
            return
        for sequence in still:
            sequence.set_max_tokens(max_tokens)
            ended = sequence.ended_already()
            if ended is not None:
                self._ending.finish(sequence, *ended, now)

    def lose(self, worker: Worker, now: float) -> None:
        """The worker is gone. What ran there goes to the front of the queue with its outputs kept, or ends if
        workers keep dying of it. A worker that was about to stop died of nothing.
        """
        state = self._state
        ran = [*worker.running.values(), *worker.parked.values()]
        worker.running.clear()
        worker.parked.clear()
        del state.workers[worker.name]
        state.totals.worker_losses += not worker.leaving
        replayed = []
        # Leads first, wherever they ran: those that share their prompts then wait for them.
        for sequence in sorted(ran, key=lambda sequence: sequence is not sequence.request.lead):
            sequence.started = True
            if sequence.beams is not None and sequence is not sequence.beams.lead:
                sequence.worker = None
                hold(state, sequence)
                continue
            sequence.deaths += not worker.leaving
            self._put_back(sequence)
            replayed.append(sequence)
        # Only now that nothing is on the worker any more: an end takes all choices of its request along.
        for sequence in replayed:
            if sequence.deaths < MAX_DEATHS:
                state.totals.replays += 1
                self._observer.replayed(sequence)
            elif sequence.status is not Status.DONE:
                message = f"the request was running when a worker failed, {MAX_DEATHS} times"
                self._ending.fail(sequence.request, Failure(Code.INTERNAL, message), now)

    def _put_back(self, sequence: Sequence) -> None:
        """Queue it again, or let it wait for another of its request that computes the same prompt before."""
        request = sequence.request
        requeue(self._state, sequence)
        lead = request.lead
        if sequence.beams is not None or sequence is lead:
            return
        if lead.status is Status.WAITING:
            self._state.waiting.remove(sequence)
            follow(self._state, lead, sequence)
        elif lead.status is Status.DONE:
            request.lead = sequence

    def _settle_waiting(self, now: float) -> None:
        for request in list(self._state.requests.values()):
            self.settle(request, now)
