"""Preemption by recomputation: a running sequence gives its memory back and is computed again later."""

from __future__ import annotations

from collections.abc import Iterable

from hundredfold_scheduler.core.beam_group import BeamGroup
from hundredfold_scheduler.core.ending import Ending
from hundredfold_scheduler.core.fair_room import FairRoom
from hundredfold_scheduler.core.observer import Observer
from hundredfold_scheduler.core.policy import VictimChoice
from hundredfold_scheduler.core.request import Sequence, Status
from hundredfold_scheduler.core.siblings import hold
from hundredfold_scheduler.core.state import State
from hundredfold_scheduler.core.worker import Worker


class Preemption:
    """Makes room for one sequence at the cost of others."""

    def __init__(
        self,
        state: State,
        victims: VictimChoice,
        fair_room: FairRoom,
        ending: Ending,
        observer: Observer,
    ) -> None:
        self._state = state
        self._victims = victims
        self._fair_room = fair_room
        self._ending = ending
        self._observer = observer

    def room_kept_from(self, sequence: Sequence, worker: Worker) -> int:
        """Blocks that a running sequence may not take: they are for owners that hold less than its own."""
        return self._fair_room.kept_from(sequence, worker)

    def next_victim(self, wanting: Sequence, worker: Worker, leave: int = 0) -> Sequence | None:
        """Who on its worker has to give way to ``wanting``, which has to leave so many blocks untouched;
        ``None`` when it is ``wanting`` that has to wait.

        Whoever the policy spares longest never waits, and fits the cache alone: so some sequence always goes
        on. If blocks are kept from it, there are others of its owner to take from until none are.
        """
        running: Iterable[Sequence] = worker.running.values()
        if leave:
            running = self._fair_room.all_kept_from(worker)
        if worker.beams:
            running = [one for one in running if _stands_for_itself(one, wanting)]
        victim = self._victims.choose(running, wanting)
        return None if victim is wanting else victim

    def preempt(self, sequence: Sequence, worker: Worker) -> None:
        """Take a running sequence's slot and blocks, and those of all beams with it. Steps in flight that
        name it still count; it is queued again, before those that never ran, when the last of their results
        is in.
        """
        state = self._state
        if sequence.beams is not None:
            sequence = self._unseat_beams(sequence.beams, worker)
        self._observer.preempted(sequence, sequence.computed, worker.cache.pool.num_available)
        self._ending.unseat(sequence, worker)
        sequence.started = True
        sequence.preemptions += 1
        state.totals.preemptions += 1
        # A row that it has in the plan that is being made, it loses again.
        sequence.last_step = min(sequence.last_step, worker.planned)
        if sequence.last_step > worker.applied:
            sequence.status = Status.PARKED
            worker.parked[sequence.number] = sequence
        else:
            requeue(state, sequence)

    def _unseat_beams(self, group: BeamGroup, worker: Worker) -> Sequence:
        """Take the seats of all but the first, which is returned and stands for all."""
        lead = group.lead
        for member in group.members[1:]:
            self._ending.unseat(member, worker)
            member.started = True
            member.worker = None
            hold(self._state, member)
            lead.last_step = max(lead.last_step, member.last_step)
        return lead


def _stands_for_itself(sequence: Sequence, wanting: Sequence) -> bool:
    """Whether a running sequence may be chosen: of beams, which give way together, the first stands for all,
    and they do not take memory from each other.
    """
    group = sequence.beams
    if group is None or group is wanting.beams:
        return group is None or sequence is wanting
    return sequence is group.lead


def requeue(state: State, sequence: Sequence) -> None:
    """Put a sequence that no worker holds any more, and no step in flight names, back into the queue; with it
    all beams, if it stands for them.
    """
    sequence.high_water = max(sequence.high_water, sequence.computed)
    if sequence.beams is not None:
        sequence.beams.restart()
    sequence.reset()
    sequence.introduced = False
    sequence.worker = None
    sequence.started = True
    sequence.status = Status.WAITING
    state.waiting.push(sequence)
