"""A priority queue from which any entry can be removed: O(log n) amortised, nothing of it remains."""

from __future__ import annotations

import heapq
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_SLACK = 64
"""Dead entries that are left alone; beyond it, at most as many dead as live."""


class Entry(Generic[T]):
    """A place in the heap. ``item`` is ``None`` once removed."""

    __slots__ = ("item", "key", "number")

    def __init__(self, key: Any, number: int, item: T) -> None:
        self.key = key
        self.number = number
        self.item: T | None = item


class LazyHeap(Generic[T]):
    """Smallest key first; equal keys leave in the order they came."""

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int, Entry[T]]] = []
        self._live = 0
        self._pushed = 0

    def __len__(self) -> int:
        return self._live

    def push(self, key: Any, item: T) -> Entry[T]:
        """Add an item; the entry returned is what ``remove`` takes."""
        self._pushed += 1
        entry = Entry(key, self._pushed, item)
        self._live += 1
        heapq.heappush(self._heap, (key, entry.number, entry))
        return entry

    def restore(self, entry: Entry[T], item: T) -> None:
        """Put a popped entry back where it was, before all that were pushed after it."""
        entry.item = item
        self._live += 1
        heapq.heappush(self._heap, (entry.key, entry.number, entry))

    def remove(self, entry: Entry[T]) -> None:
        """Take an entry out, wherever it is; nothing happens when it is out already."""
        if entry.item is None:
            return
        entry.item = None
        self._live -= 1
        if len(self._heap) > 2 * self._live + _SLACK:
            self._heap = [place for place in self._heap if place[2].item is not None]
            heapq.heapify(self._heap)

    def peek(self) -> Entry[T] | None:
        """The first entry, left in place."""
        heap = self._heap
        while heap and heap[0][2].item is None:
            heapq.heappop(heap)
        return heap[0][2] if heap else None

    def pop(self) -> tuple[Entry[T], T] | None:
        """Take out the first entry."""
        entry = self.peek()
        if entry is None or entry.item is None:
            return None
        heapq.heappop(self._heap)
        item, entry.item = entry.item, None
        self._live -= 1
        return entry, item

    def items(self) -> list[T]:
        """All items, in no order. O(n)."""
        return [entry.item for _, _, entry in self._heap if entry.item is not None]
