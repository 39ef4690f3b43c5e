"""How fast requests finish lately, to tell a refused client when to come back."""

from __future__ import annotations

from collections import deque

_WINDOW = 64
_UNKNOWN_MS = 1_000
_MIN_MS = 100
_MAX_MS = 60_000


class FinishRate:
    """Times of the last requests that left."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_WINDOW)

    def record(self, now: float) -> None:
        """A request left."""
        self._times.append(now)

    def retry_after_ms(self, waiting: int, now: float) -> int:
        """Milliseconds until about half of those that wait have left: soon enough to find a place, late
        enough that not all who were refused come back for the same one. Between 0.1 s and 60 s; 1 s when
        nothing is known.
        """
        if len(self._times) < 2:
            return _UNKNOWN_MS
        span_s = max(now - self._times[0], 1e-3)
        per_s = len(self._times) / span_s
        return max(_MIN_MS, min(_MAX_MS, round(1000 * (waiting / 2 + 1) / per_s)))
