"""Open-loop arrivals: their statistics, and each request sent at its time on a clock of the test's own."""

import asyncio

import numpy as np
import pytest

from hundredfold.bench.arrivals import Arrival, arrival_times, dispatch


class FakeClock:
    """Time that moves only when somebody sleeps, and jumps past the moment by `late` then."""

    def __init__(self, late: float = 0.0) -> None:
        self.time = 0.0
        self.late = late

    def now(self) -> float:
        return self.time

    async def sleep_until(self, moment: float) -> None:
        if moment > self.time:
            self.time = moment + self.late
        await asyncio.sleep(0)


async def sent_at(times, clock: FakeClock) -> list[tuple[int, float, float]]:
    """Dispatch and return (index, moment due, moment sent) of each request."""
    seen: list[tuple[int, float, float]] = []

    async def send(index: int, moment: float) -> None:
        seen.append((index, moment, clock.now()))

    await dispatch(list(enumerate(times)), clock, send)
    return seen


async def test_poisson_counts_have_equal_mean_and_variance_and_gaps_are_exponential():
    rate, count = 20.0, 20_000
    seen = await sent_at(arrival_times(Arrival.POISSON, rate, count, seed=3), FakeClock())
    sent = np.array([moment for _, _, moment in seen])
    assert len(sent) == count
    per_second = np.bincount(sent.astype(int))[:-1]
    assert per_second.mean() == pytest.approx(rate, rel=0.03)
    assert per_second.var() == pytest.approx(rate, rel=0.15)
    gaps = np.diff(sent)
    assert gaps.mean() == pytest.approx(1 / rate, rel=0.03)
    assert gaps.std() == pytest.approx(1 / rate, rel=0.05)
    assert np.mean(gaps > 1 / rate) == pytest.approx(np.exp(-1), abs=0.02)


async def test_sending_waits_for_no_answer():
    """Coordinated omission: a server that never answers the first request does not delay the others."""
    clock, started, release = FakeClock(), [], asyncio.Event()

    async def send(index: int, moment: float) -> None:
        started.append(index)
        if len(started) == 5:
            release.set()
        await release.wait()

    await asyncio.wait_for(dispatch(list(enumerate([0.0, 1.0, 2.0, 3.0, 4.0])), clock, send), 30)
    assert started == [0, 1, 2, 3, 4]


async def test_late_sending_keeps_the_moment_due():
    seen = await sent_at([1.0, 1.1, 1.2], FakeClock(late=0.5))
    assert [moment for _, moment, _ in seen] == [1.0, 1.1, 1.2]
    assert all(sent >= moment for _, moment, sent in seen)
    assert seen[0][2] == 1.5


def test_burst_without_rate_is_due_at_once():
    assert not arrival_times(Arrival.BURST, None, 5, seed=0).any()


def test_burst_with_rate_comes_a_second_at_a_time_at_the_mean_rate():
    times = arrival_times(Arrival.BURST, 10.0, 35, seed=0)
    assert times.tolist() == [0.0] * 10 + [1.0] * 10 + [2.0] * 10 + [3.0] * 5
    slow = arrival_times(Arrival.BURST, 0.5, 3, seed=0)
    assert slow.tolist() == [0.0, 2.0, 4.0]


def test_arrivals_depend_on_the_seed_alone():
    first, again, other = (arrival_times(Arrival.POISSON, 5.0, 50, seed) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


def test_poisson_needs_a_rate():
    with pytest.raises(ValueError, match="rate"):
        arrival_times(Arrival.POISSON, None, 5, seed=0)
