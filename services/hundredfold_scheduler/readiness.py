"""When the service is ready: with a worker, and for a grace after one was lost, while requests wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Readiness:
    """Decides what ``set_ready(ready, reason)`` is told."""

    def __init__(self, set_ready: Callable[[bool, str], None], grace_s: float) -> None:
        self._set_ready = set_ready
        self._grace_s = grace_s
        self._reason = "no worker yet"
        self._ready = False
        self._timer: asyncio.TimerHandle | None = None

    def connected(self) -> None:
        """A worker takes plans."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._ready = True
        self._set_ready(True, "")

    def lost(self) -> None:
        """The worker is gone; the grace begins."""
        if self._ready and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._grace_s, self._expire)

    def explain(self, reason: str) -> None:
        """Why there is no worker."""
        self._reason = reason
        if not self._ready:
            self._set_ready(False, reason)

    def _expire(self) -> None:
        self._timer = None
        self._ready = False
        self._set_ready(False, self._reason)
