"""Room for those who hold little: the last seats and blocks are not for an owner above its equal share."""

from __future__ import annotations

from collections import OrderedDict

from hundredfold_scheduler.core.policy import AdmissionOrder
from hundredfold_scheduler.core.request import Sequence
from hundredfold_scheduler.core.worker import Worker

KEPT = 16
"""One in so many of a worker's seats and blocks is kept."""
RECENT_S = 60.0
"""An owner counts for so long after its last request: alone, one may have everything."""
MAX_OWNERS = 4096


class FairRoom:
    """Without it an owner whose long requests fill seats and memory makes everybody else wait until one of
    them ends, whatever the order of the queue.
    """

    def __init__(self, order: AdmissionOrder) -> None:
        self._order = order
        self._seen: OrderedDict[str, float] = OrderedDict()
        """Owners by the time of their last request, longest ago first."""

    @property
    def num_owners(self) -> int:
        """Owners that asked for something lately."""
        return len(self._seen)

    def saw(self, sequence: Sequence, now: float) -> None:
        """A request came."""
        owner = self._order.owner(sequence)
        self._seen[owner] = now
        self._seen.move_to_end(owner)
        self._forget(now)

    def keeps_from(self, sequence: Sequence, worker: Worker, num_blocks: int, room: int, now: float) -> bool:
        """Whether a sequence that would take ``num_blocks`` of ``room`` has to leave them to others.
        O(running) where it comes to the last part, else O(1).
        """
        self._forget(now)
        if len(self._seen) < 2:
            return False
        last_seats = worker.slots.num_free <= worker.slots.count // KEPT
        last_blocks = room - num_blocks < worker.cache.pool.num_blocks // KEPT
        return (last_seats or last_blocks) and not self.has_claim(sequence, worker, num_blocks)

    def kept_from(self, sequence: Sequence, worker: Worker) -> int:
        """Blocks that a running sequence has to leave to others when it grows; none when it runs alone."""
        if len(self._seen) < 2:
            return 0
        pool = worker.cache.pool
        kept = pool.num_blocks // KEPT
        if pool.num_available > 2 * kept + 1:
            return 0
        if all(other.request is sequence.request for other in worker.running.values()):
            return 0
        if sequence.beams is not None and self._is_only_request(sequence, worker):
            return 0  # it has nobody of its own to take from, beams do not from each other
        return 0 if self._holds_little(sequence, worker, 0, 0) else kept

    def all_kept_from(self, worker: Worker) -> list[Sequence]:
        """Running sequences that may not take what is kept. One of them that cannot grow takes from these
        alone: what it took from others would only be kept from it too. If it is the one of strongest claim,
        it finds another of its owner here, until nothing is kept from it.
        """
        kept: dict[str, bool] = {}
        for other in worker.running.values():
            owner = self._order.owner(other)
            if owner not in kept:
                kept[owner] = self.kept_from(other, worker) > 0
        return [other for other in worker.running.values() if kept[self._order.owner(other)]]

    def has_claim(self, sequence: Sequence, worker: Worker, num_blocks: int) -> bool:
        """Whether its owner holds nothing yet, or with it no more than its equal share of seats and blocks.
        O(running).
        """
        return self._holds_little(sequence, worker, 1, num_blocks)

    def _is_only_request(self, sequence: Sequence, worker: Worker) -> bool:
        """Whether no other request of its owner runs here."""
        owner = self._order.owner(sequence)
        return all(
            other.request is sequence.request
            for other in worker.running.values()
            if self._order.owner(other) == owner
        )

    def _holds_little(self, sequence: Sequence, worker: Worker, seats: int, blocks: int) -> bool:
        """Whether its owner, with so much more, has one seat or at most its equal share."""
        owner = self._order.owner(sequence)
        for other in worker.running.values():
            if self._order.owner(other) == owner:
                seats += 1
                blocks += len(other.blocks) - other.unseen + other.promised
        if seats == 1:
            return True
        owners = max(1, len(self._seen))
        return seats * owners <= worker.slots.count and blocks * owners <= worker.cache.pool.num_blocks

    def _forget(self, now: float) -> None:
        while self._seen:
            owner = next(iter(self._seen))
            if len(self._seen) <= MAX_OWNERS and self._seen[owner] >= now - RECENT_S:
                return
            del self._seen[owner]
