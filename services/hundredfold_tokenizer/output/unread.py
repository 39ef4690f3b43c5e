"""Bounds the output that clients have not read, all of them together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hundredfold_tokenizer.output.outbox import Outbox


class UnreadBudget:
    """Counts unread bytes; past the limit the reader that is furthest behind loses its request.

    Args:
        limit: Most bytes.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.num_bytes = 0
        self._ends: dict[Outbox, Callable[[], None]] = {}

    def __len__(self) -> int:
        """Outboxes that are counted."""
        return len(self._ends)

    def join(self, outbox: Outbox, end: Callable[[], None]) -> None:
        """Count this one too; ``end`` ends its request and so empties it."""
        self._ends[outbox] = end

    def leave(self, outbox: Outbox) -> None:
        """Count it no more; it is empty."""
        self._ends.pop(outbox, None)

    def change(self, size: int) -> None:
        """An outbox grew or shrank by so many bytes."""
        self.num_bytes += size

    def enforce(self) -> None:
        """End the largest requests until the rest fits. To be called between steps."""
        while self.num_bytes > self.limit:
            largest = max(self._ends, key=lambda outbox: outbox.num_bytes, default=None)
            if largest is None or largest.num_bytes == 0:
                return
            before = self.num_bytes
            self._ends[largest]()
            if self.num_bytes >= before:
                return  # what freed nothing would free nothing again: the event loop would stand still
