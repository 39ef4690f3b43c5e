"""Tokens served, by class and owner: what decides whose turn it is, in memory that strangers cannot fill.

The rule is that of virtual token counters (Sheng et al., Fairness in Serving Large Language Models, 2024):
who was served least goes next, and who comes back from being idle starts level with the least served that
waits. So nobody saves up turns by asking for nothing, and nobody is held to account for a time when no one
else asked. A new name starts where an owner would be who had its equal share all along, so that a stream of
new names is one share more each and not all of them.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

MAX_IDLE = 4096
"""Accounts kept of owners that have nothing here any more; beyond it the one idle longest is forgotten, which
sets its owner level with the least served again.
"""


@dataclass(slots=True, eq=False)
class Account:
    """What one owner was served in one class."""

    level: int
    owner: str
    priority: int
    """A request that waited its way up to a class is there as another owner would be: it takes a share of the
    class, never all of it.
    """
    served: int = 0
    """Prompt tokens that had to be computed, counted when their sequence is seated, and output tokens."""
    holders: int = 0


class Ledger:
    """Opens, lifts and forgets accounts. Every operation is O(1)."""

    def __init__(self, max_idle: int = MAX_IDLE) -> None:
        self._max_idle = max_idle
        self._accounts: dict[tuple[int, str, int], Account] = {}
        self._idle: OrderedDict[tuple[int, str, int], None] = OrderedDict()
        """Keys of accounts that nobody holds, idle longest first."""
        self._last: dict[int, Account] = {}
        """Whose turn it was last, by class."""
        self._shares: dict[int, float] = {}
        """Tokens that an owner was served who always waited, by class."""

    def __len__(self) -> int:
        return len(self._accounts)

    def open(self, level: int, owner: str, priority: int) -> Account:
        """The owner's account in a class, held once more."""
        key = (level, owner, priority)
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = Account(level, owner, priority)
        account.holders += 1
        self._idle.pop(key, None)
        return account

    def join(self, account: Account, least_waiting: int | None) -> None:
        """The owner begins to wait; ``least_waiting`` is what the least served that wait were served, if any
        do.
        """
        last = self._last.get(account.level)
        floor = least_waiting if least_waiting is not None else last.served if last is not None else 0
        account.served = max(account.served, floor, int(self._shares.get(account.level, 0)))

    def seat(self, account: Account, tokens: int, num_owners: int) -> None:
        """It was the owner's turn, one of so many, and so many tokens will be computed for it."""
        account.holders += 1
        account.served += tokens
        self._last[account.level] = account
        self.share(account, tokens, num_owners)

    def share(self, account: Account, tokens: int, num_owners: int) -> None:
        """An owner was served tokens while so many, it among them, wanted to be."""
        level = account.level
        self._shares[level] = self._shares.get(level, 0.0) + tokens / max(1, num_owners)

    def close(self, account: Account) -> None:
        """Somebody who held the account is gone."""
        account.holders -= 1
        if account.holders:
            return
        key = (account.level, account.owner, account.priority)
        self._idle[key] = None
        if len(self._idle) > self._max_idle:
            forgotten, _ = self._idle.popitem(last=False)
            del self._accounts[forgotten]
