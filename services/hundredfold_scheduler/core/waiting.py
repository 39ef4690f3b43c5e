"""The waiting queue: ordered by policy, counted in requests and tokens, every operation O(log n)."""

from __future__ import annotations

from hundredfold_scheduler.core.lazy_heap import LazyHeap
from hundredfold_scheduler.core.policy import AdmissionOrder
from hundredfold_scheduler.core.request import Sequence


class WaitingQueue:
    """Sequences that wait for a seat."""

    def __init__(self, order: AdmissionOrder) -> None:
        self._order = order
        self._heap: LazyHeap[Sequence] = LazyHeap()
        self.num_tokens = 0
        """Tokens of all that wait, prompts and delivered outputs together."""
        self.num_fresh = 0
        """Sequences that were never worked on: the ones that a limit of the queue is for."""
        self.fresh_tokens = 0
        self.version = 0
        """Changes whenever a sequence joins or is taken out of turn."""

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, sequence: Sequence) -> None:
        """Queue a sequence at its place in the order."""
        sequence.queue_entry = self._heap.push(self._order.key(sequence), sequence)
        self.version += 1
        self._count(sequence, 1)

    def pop(self) -> Sequence | None:
        """Take the first one out."""
        popped = self._heap.pop()
        if popped is None:
            return None
        self._count(popped[1], -1)
        return popped[1]

    def restore(self, sequence: Sequence) -> None:
        """Put a popped sequence back at the place that it had."""
        if sequence.queue_entry is None:
            raise ValueError(f"sequence {sequence.number} was never queued")
        self._heap.restore(sequence.queue_entry, sequence)
        self._count(sequence, 1)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it stands."""
        if sequence.queue_entry is not None and sequence.queue_entry.item is not None:
            self._heap.remove(sequence.queue_entry)
            self.version += 1
            self._count(sequence, -1)
        sequence.queue_entry = None

    def items(self) -> list[Sequence]:
        """All, in no order. O(n)."""
        return self._heap.items()

    def _count(self, sequence: Sequence, sign: int) -> None:
        tokens = sign * sequence.total
        self.num_tokens += tokens
        if not sequence.started:
            self.num_fresh += sign
            self.fresh_tokens += tokens
