"""Progress: whether the loops that do a service's work still do it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Heartbeat:
    """One loop's sign of life. Any thread may beat; a beat costs a clock reading."""

    name: str
    limit_s: float
    """Longest that one turn of the loop may take."""
    clock: Callable[[], float] = time.monotonic
    _last: float | None = field(default=None, init=False)

    def beat(self) -> None:
        """A turn of the loop begins: the next call has to come within the limit."""
        self._last = self.clock()

    def rest(self) -> None:
        """The loop waits for work: nothing is expected of it until it beats again."""
        self._last = None

    def stalled_s(self) -> float | None:
        """Seconds since the last beat when that is over the limit, else ``None``."""
        last = self._last
        if last is None:
            return None
        silent = self.clock() - last
        return silent if silent > self.limit_s else None
