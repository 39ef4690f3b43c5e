"""One owner's waiting sequences of one priority, first come, first served: what takes turns with its like."""

from __future__ import annotations

from hundredfold_scheduler.core.lazy_heap import Entry, LazyHeap
from hundredfold_scheduler.core.ledger import Account
from hundredfold_scheduler.core.request import Sequence

LaneKey = tuple[int, str | None]
"""Priority and owner; no owner for those that have been worked on before."""


class Lane:
    """All that is in it has waited no longer than its head, so the head alone has to be looked at."""

    __slots__ = (
        "account",
        "aside",
        "entry",
        "level",
        "looked",
        "out",
        "owner",
        "priority",
        "sequences",
        "tick",
    )

    def __init__(self, priority: int, owner: str | None) -> None:
        self.priority = priority
        self.owner = owner
        self.sequences: LazyHeap[Sequence] = LazyHeap()
        self.level = priority
        """The class that it has reached by waiting."""
        self.account: Account | None = None
        """In that class; none for those that have been worked on before, who go first."""
        self.looked = 0
        """Tokens of those that are being looked at: a candidate counts as served until it is put back, so
        that one owner's long line does not hide everybody else's.
        """
        self.aside = False
        """Whether the look that goes on wants no more of it."""
        self.out = 0
        """Number of those that are being looked at."""
        self.entry: Entry[Lane] | None = None
        """Its place among the lanes of its class."""
        self.tick: Entry[Lane] | None = None
        """When its head will have waited for another class."""

    def head(self) -> Sequence | None:
        """Who goes next."""
        entry = self.sequences.peek()
        return None if entry is None else entry.item

    def key(self, head: Sequence) -> tuple[bool, int, float, int]:
        """Its place in its class, smallest first: preempted and replayed ones, then the least served."""
        account = self.account
        served = 0 if account is None else account.served + self.looked
        return account is not None, served, head.request.arrival, head.number
