"""When a failed call is tried again, and after how long. No clock runs here and nothing sleeps."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from hundredfold.client.errors import AlreadyExists, DeadlineExceeded, RequestFailed, Unavailable


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to keep trying, in seconds.

    Attributes:
        connect_s: Until a server first answers; 0 gives up at the first refusal.
        resume_s: Until a broken stream goes on, counted anew whenever something arrived; 0 never resumes.
        first_delay_s: Pause after the first failure; doubles with each further one, up to ``max_delay_s``.
        max_delay_s: Longest pause, unless the server asks for a longer one.
    """

    connect_s: float = 10.0
    resume_s: float = 60.0
    first_delay_s: float = 0.1
    max_delay_s: float = 2.0


class Attempts:
    """The tries of one call under one deadline."""

    def __init__(
        self, policy: RetryPolicy, timeout_s: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._policy = policy
        self._clock = clock
        self._deadline = None if timeout_s is None else clock() + timeout_s
        self._failing_since: float | None = None
        self._failures = 0

    def remaining(self) -> float | None:
        """Seconds until the caller's deadline, None without one.

        Raises:
            DeadlineExceeded: It has passed.
        """
        if self._deadline is None:
            return None
        left = self._deadline - self._clock()
        if left <= 0:
            raise DeadlineExceeded(grpc.StatusCode.DEADLINE_EXCEEDED, "the timeout passed")
        return left

    def progressed(self) -> None:
        """Something arrived: the next failure is a first one."""
        self._failing_since, self._failures = None, 0

    def delay_after(self, error: RequestFailed, *, resuming: bool) -> float:
        """Seconds to wait before the next try.

        Raises:
            RequestFailed: ``error`` itself, when trying again is no use or there is no time left for it.
        """
        # A server may not have noticed yet that the connection of a resumed request is gone.
        still_running = resuming and isinstance(error, AlreadyExists)
        if not isinstance(error, Unavailable) and not still_running:
            raise error from None
        now = self._clock()
        if self._failing_since is None:
            self._failing_since = now
        delay = min(self._policy.first_delay_s * 2.0**self._failures, self._policy.max_delay_s)
        delay *= random.uniform(0.8, 1.2)  # clients that lost the same server do not come back all at once
        delay = max(delay, error.retry_after_s or 0.0)
        self._failures = min(self._failures + 1, 30)
        budget = self._policy.resume_s if resuming else self._policy.connect_s
        give_up = self._failing_since + budget
        if self._deadline is not None:
            give_up = min(give_up, self._deadline)
        if now + delay > give_up:
            raise error from None
        return delay
