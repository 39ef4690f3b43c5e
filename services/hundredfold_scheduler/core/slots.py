"""The worker's seats: a slot names a sequence in every plan and result."""

from __future__ import annotations


class Slots:
    """A slot given back is free at once: the next plan releases before it seats."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._released: list[int] = []

    @property
    def num_free(self) -> int:
        """Seats that the next plan can fill."""
        return len(self._free)

    @property
    def any_to_release(self) -> bool:
        """Whether the worker holds sequences that it should forget."""
        return bool(self._released)

    def take(self) -> int:
        """A free slot. The caller has seen that there is one."""
        return self._free.pop()

    def give_back(self, slot: int, *, introduced: bool) -> None:
        """The slot's sequence is in no later plan; ``introduced`` says whether the worker knows of it."""
        self._free.append(slot)
        if introduced:
            self._released.append(slot)

    def clear(self, slot: int) -> None:
        """The worker is to forget the slot's sequence; the seat stays taken."""
        self._released.append(slot)

    def take_released(self) -> list[int]:
        """Slots that the plan being made has to release."""
        released, self._released = self._released, []
        return released

    def free_slots(self) -> list[int]:
        """Free slots, in no order. O(n)."""
        return list(self._free)
