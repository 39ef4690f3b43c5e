"""Decides when a reader is woken, so that messages to clients stay affordable.

A token goes out at once while the door sends few messages a second. The more streams there are, the longer
each rests after a message, and the tokens of that time travel together: never longer than the bound, and
never the first token. What a message costs is what a machine that also runs the model cannot spare, and much
of that is waking up for it, here and at the client: so streams that rest are woken a quarter at a time.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hundredfold_tokenizer.output.outbox import Outbox

_TICK_S = 0.002
"""Readers due within so short a time are woken together."""
_GROUPS = 4
"""Groups in which resting readers are woken. One of a new stream rests up to a quarter less, once."""


class Pacer:
    """Spreads the messages of all streams.

    Args:
        messages_per_s: How many the door aims at, all streams together.
        max_delay_s: Longest rest of a stream between two messages.
    """

    def __init__(self, messages_per_s: float, max_delay_s: float) -> None:
        self._per_message_s = 1.0 / messages_per_s
        self._max_delay_s = max_delay_s
        self._resting: list[tuple[float, int, Outbox]] = []
        self._order = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.streams = 0
        """Streams that are open; each outbox counts itself."""

    @property
    def delay_s(self) -> float:
        """How long a stream rests after a message."""
        return min(self._max_delay_s, self.streams * self._per_message_s)

    def now(self) -> float:
        """The clock that rests are measured by, in seconds."""
        return asyncio.get_running_loop().time()

    def is_due(self, outbox: Outbox) -> bool:
        """Whether the reader has rested long enough."""
        return self.now() >= self.due(outbox) - _TICK_S

    def offer(self, outbox: Outbox) -> None:
        """There is something to read: wake the reader now or when it has rested."""
        if outbox.scheduled or not outbox.waiting:
            return
        due = self.due(outbox)
        if due <= self.now() + _TICK_S:
            outbox.wake()
            return
        outbox.scheduled = True
        outbox.due = due
        self._order += 1
        heapq.heappush(self._resting, (due, self._order, outbox))
        if self._timer is None or due < self._timer_at:
            self._arm(due)

    def due(self, outbox: Outbox) -> float:
        """When the reader has rested long enough: a moment that many readers have in common."""
        delay_s, last_read = self.delay_s, outbox.last_read
        apart_s = delay_s / _GROUPS
        if apart_s < _TICK_S or last_read < 0:
            return last_read + delay_s
        return (last_read + delay_s + _TICK_S) // apart_s * apart_s

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = asyncio.get_running_loop().call_at(due, self._wake_due)

    def _wake_due(self) -> None:
        self._timer = None
        limit = self.now() + _TICK_S
        while self._resting and self._resting[0][0] <= limit:
            _, _, outbox = heapq.heappop(self._resting)
            outbox.scheduled = False
            outbox.wake()
        if self._resting:
            self._arm(self._resting[0][0])
