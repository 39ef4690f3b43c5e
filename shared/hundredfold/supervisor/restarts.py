"""When a crashed child is started again, and when there is no use in it any more. No clock runs here."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How patient to be.

    Attributes:
        limit: Restarts within the window after which to give up.
        window_s: Length of the window.
        first_delay_s: Pause before the first restart; doubles with each further one inside the window.
        max_delay_s: Longest pause.
    """

    limit: int = 5
    window_s: float = 60.0
    first_delay_s: float = 0.2
    max_delay_s: float = 5.0


class RestartBook:
    """The recent restarts of one child."""

    def __init__(self, policy: RestartPolicy) -> None:
        self.policy = policy
        self._times: deque[float] = deque()

    def delay_after_crash(self, now: float) -> float | None:
        """Seconds to wait before the restart, None when there have been too many."""
        while self._times and now - self._times[0] > self.policy.window_s:
            self._times.popleft()
        if len(self._times) >= self.policy.limit:
            return None
        delay = self.policy.first_delay_s * 2.0 ** len(self._times)
        self._times.append(now)
        return min(delay, self.policy.max_delay_s)
