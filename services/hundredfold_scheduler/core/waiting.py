"""The waiting queue: classes, in them owners by turns, bounded in what a look at it costs.

Strict between classes. Inside a class those that have been worked on before go first, then the owner that was
served least; one owner's requests of one priority keep their order. Waiting raises by a class at a time, up
to the highest priority that waits too: a flood of old requests comes level with the new ones of that priority
and takes turns with them, it does not pass them. Every operation is O(log n).
"""

from __future__ import annotations

from collections import Counter

from hundredfold_scheduler.core.lane import Lane, LaneKey
from hundredfold_scheduler.core.lazy_heap import LazyHeap
from hundredfold_scheduler.core.ledger import Ledger
from hundredfold_scheduler.core.policy import AdmissionOrder
from hundredfold_scheduler.core.request import Sequence

MAX_TICKS = 64
"""Lanes raised per look; those beyond it are raised at the next ones, longest due first."""


class WaitingQueue:
    """Sequences that wait for a seat. After ``pop`` comes ``restore`` or ``seat`` before anything else."""

    def __init__(self, order: AdmissionOrder) -> None:
        self._order = order
        self._ledger = Ledger()
        self._lanes: dict[LaneKey, Lane] = {}
        self._classes: dict[tuple[int, bool], LazyHeap[Lane]] = {}
        """By class, and whether those in it have been worked on before."""
        self._ticks: LazyHeap[Lane] = LazyHeap()
        self._priorities: Counter[int] = Counter()
        self._now = 0.0
        self._length = 0
        self.num_tokens = 0
        """Tokens of all that wait, prompts and delivered outputs together."""
        self.num_fresh = 0
        """Sequences that were never worked on: the ones that a limit of the queue is for."""
        self.fresh_tokens = 0
        self.version = 0
        """Changes whenever a sequence joins, is raised or is taken out of turn."""

    def __len__(self) -> int:
        return self._length

    def push(self, sequence: Sequence) -> None:
        """Queue a sequence at its place in the order."""
        key = self._key(sequence)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(*key)
        place = (sequence.request.arrival, sequence.number)
        sequence.queue_entry = lane.sequences.push(place, sequence)
        self._count(sequence, 1)
        self.version += 1
        if lane.head() is sequence:
            self._place(lane)

    def age(self, now: float) -> None:
        """Raise whose time has come."""
        self._now = now
        for _ in range(MAX_TICKS):
            due = self._ticks.peek()
            if due is None or due.item is None or due.key > now:
                return
            lane = due.item
            ceiling = max(self._priorities)
            rises = 1 + int((now - due.key) / self._order.ageing_s)
            level = max(lane.level, min(ceiling, lane.level + rises))
            if level != lane.level:
                self.version += 1
            self._place(lane, level)

    def pop(self) -> Sequence | None:
        """Take out the first one for a look."""
        lane = self._first()
        popped = lane.sequences.pop() if lane is not None else None
        if lane is None or popped is None:
            return None
        sequence = popped[1]
        lane.out += 1
        lane.looked += sequence.total
        self._count(sequence, -1)
        self._place(lane)
        return sequence

    def set_aside(self, sequence: Sequence) -> None:
        """Give out no more of a popped sequence's line until it is restored."""
        lane = self._lanes[self._key(sequence)]
        lane.aside = True
        self._place(lane)

    def restore(self, sequence: Sequence) -> None:
        """Put a popped sequence back at the place that it had."""
        if sequence.queue_entry is None:
            raise ValueError(f"sequence {sequence.number} was never queued")
        lane = self._taken(sequence)
        lane.sequences.restore(sequence.queue_entry, sequence)
        self._count(sequence, 1)
        self._place(lane)

    def seat(self, sequence: Sequence, missing: int) -> None:
        """A popped sequence has its seat, and ``missing`` of its tokens have to be computed for the first
        time: its owner is charged.
        """
        lane = self._taken(sequence)
        sequence.queue_entry = None
        account = sequence.account
        if account is None:
            sequence.level = lane.level
            owner = self._order.owner(sequence)
            account = lane.account or self._ledger.open(lane.level, owner, lane.priority)
            sequence.account = account
            self._ledger.seat(account, missing, self._num_owners(account.level))
            if lane.account is None:
                self._ledger.close(account)
        self._place(lane)

    def leave(self, sequence: Sequence) -> None:
        """A sequence ends that had a seat once: its owner's account is held by one less."""
        account = sequence.account
        if account is not None:
            self._ledger.share(account, sequence.num_output, self._num_owners(account.level))
            self._ledger.close(account)
            sequence.account = None

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands."""
        entry = sequence.queue_entry
        if entry is not None and entry.item is not None:
            lane = self._lanes[self._key(sequence)]
            was_head = lane.head() is sequence
            lane.sequences.remove(entry)
            self._count(sequence, -1)
            self.version += 1
            if was_head:
                self._place(lane)
        sequence.queue_entry = None

    def items(self) -> list[Sequence]:
        """All, in no order. O(n)."""
        return [sequence for lane in self._lanes.values() for sequence in lane.sequences.items()]

    def _key(self, sequence: Sequence) -> LaneKey:
        return self._order.level(sequence), None if sequence.started else self._order.owner(sequence)

    def _taken(self, sequence: Sequence) -> Lane:
        """The lane that a popped sequence came from; it is no more being looked at."""
        lane = self._lanes[self._key(sequence)]
        lane.out -= 1
        lane.aside = False
        lane.looked -= sequence.total
        return lane

    def _first(self) -> Lane | None:
        """The lane whose turn it is. Accounts only grow, so a stale place is always too early: it is put
        right when it comes up, once for each time that its owner was served.
        """
        while self._classes:
            highest = max(self._classes)
            lane = self._least(highest)
            if lane is not None:
                return lane
            del self._classes[highest]
        return None

    def _least(self, key: tuple[int, bool]) -> Lane | None:
        """The first lane of a class."""
        lanes = self._classes.get(key)
        while lanes is not None and (entry := lanes.peek()) is not None and entry.item is not None:
            lane = entry.item
            head = lane.head()
            if head is None:
                raise ValueError(f"lane {lane.priority}, {lane.owner!r} is empty and in line")
            place = lane.key(head)
            if place == entry.key:
                return lane
            lanes.remove(entry)
            lane.entry = lanes.push(place, lane)
        return None

    def _place(self, lane: Lane, level: int | None = None) -> None:
        """Put a lane where its head belongs, raised to ``level`` if it is given, or close it."""
        if lane.entry is not None:
            self._classes[lane.level, lane.owner is None].remove(lane.entry)
            lane.entry = None
        if lane.tick is not None:
            self._ticks.remove(lane.tick)
            lane.tick = None
        head = lane.head()
        if head is None:
            if not lane.out:
                self._close(lane)
            return
        if lane.aside:
            return
        self._enter(lane, self._reached(lane, head) if level is None else level)
        lanes = self._classes.setdefault((lane.level, lane.owner is None), LazyHeap())
        lane.entry = lanes.push(lane.key(head), lane)
        if self._order.ageing_s:
            lane.tick = self._ticks.push(self._next_tick(head), lane)

    def _reached(self, lane: Lane, head: Sequence) -> int:
        """The class of a lane with a new head: what the head has waited for, as far as others got."""
        if not self._order.ageing_s:
            return lane.priority
        waited = max(0.0, self._now - head.request.arrival)
        most = lane.level if lane.account is not None else max(self._priorities)
        return max(lane.priority, min(most, lane.priority + int(waited / self._order.ageing_s)))

    def _next_tick(self, head: Sequence) -> float:
        ageing_s, arrival = self._order.ageing_s, head.request.arrival
        return float(arrival + ageing_s * (max(0, int((self._now - arrival) / ageing_s)) + 1))

    def _enter(self, lane: Lane, level: int) -> None:
        """Give a lane its account in a class that it is new in."""
        if lane.owner is None or (lane.account is not None and lane.level == level):
            lane.level = level
            return
        if lane.account is not None:
            self._ledger.close(lane.account)
        lane.level = level
        least = self._least((level, False))
        waiting = least.account.served if least is not None and least.account is not None else None
        lane.account = self._ledger.open(level, lane.owner, lane.priority)
        self._ledger.join(lane.account, waiting)

    def _num_owners(self, level: int) -> int:
        """Lanes of a class that wait, beside the one that was just served."""
        return 1 + len(self._classes.get((level, False), ()))

    def _close(self, lane: Lane) -> None:
        if lane.account is not None:
            self._ledger.close(lane.account)
        del self._lanes[lane.priority, lane.owner]

    def _count(self, sequence: Sequence, sign: int) -> None:
        tokens = sign * sequence.total
        self._length += sign
        self.num_tokens += tokens
        if not sequence.started:
            self.num_fresh += sign
            self.fresh_tokens += tokens
        priority = self._order.level(sequence)
        self._priorities[priority] += sign
        if not self._priorities[priority]:
            del self._priorities[priority]
