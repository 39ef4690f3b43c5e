"""When requests are due in an open loop, and sending each at its time whatever became of the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from enum import StrEnum
from typing import Any, Protocol, TypeVar

import numpy as np

T = TypeVar("T")


class Arrival(StrEnum):
    """How requests of an open loop arrive."""

    POISSON = "poisson"
    """Independently of each other: exponential gaps."""
    BURST = "burst"
    """Together: all at once, or with a rate one second's worth at a time."""


class Clock(Protocol):
    """Time as the dispatcher sees it; tests bring their own."""

    def now(self) -> float:
        """Return seconds on a monotonic clock."""

    async def sleep_until(self, moment: float) -> None:
        """Return at `moment`, at once when it has passed."""


class MonotonicClock:
    """The machine's monotonic clock, which all processes of a machine share."""

    def now(self) -> float:
        """Return seconds since some moment that is the same for all processes."""
        return time.monotonic()

    async def sleep_until(self, moment: float) -> None:
        """Sleep the rest of the time to `moment`."""
        await asyncio.sleep(max(0.0, moment - time.monotonic()))


def arrival_times(
    arrival: Arrival, rate: float | None, count: int, seed: int
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return when each request is due, in seconds from the start of the run.

    Returns [count] float64, ascending. `rate` is in requests per second; a burst without one is due at once
    as a whole, with one it comes in groups of one second's worth (at least one) at the same mean rate.
    Raises ValueError for Poisson arrivals without a rate.
    """
    if arrival is Arrival.BURST:
        if rate is None:
            return np.zeros(count)
        group = max(1, round(rate))
        return (np.arange(count) // group).astype(np.float64) * (group / rate)
    if rate is None:
        raise ValueError("Poisson arrivals need a rate")
    return np.cumsum(np.random.default_rng((seed, 1)).exponential(1.0 / rate, count))


async def dispatch(
    due: Iterable[tuple[T, float]], clock: Clock, send: Callable[[T, float], Coroutine[Any, Any, None]]
) -> None:
    """Start `send(item, moment)` at each item's moment, waiting for none of the earlier ones, then for all.

    A late start still passes the moment at which the request was due, so latencies count from there.
    """
    async with asyncio.TaskGroup() as group:
        for item, moment in due:
            await clock.sleep_until(moment)
            group.create_task(send(item, moment))
