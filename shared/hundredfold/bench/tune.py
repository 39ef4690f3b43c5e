"""Searches the settings of a step for a latency target: how many sequences, how many tokens.

``max_num_seqs`` needs no restart to try: N requests in flight compute the same steps on an engine with more
seats as on one with N. ``max_num_batched_tokens`` does, so each of its values is one start of the services.
Latency grows with N, so N is searched by halving: few runs each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

MOST_SEATS = 256
BATCHED_TOKENS = (128, 256, 512, 1024)


@dataclass(frozen=True, slots=True)
class Target:
    """What has to hold; None does not matter."""

    tpot_p99_ms: float | None = None
    ttft_p99_ms: float | None = None

    def misses(self, point: Point) -> list[str]:
        """What a point does not keep, in words."""
        told = []
        for name, limit, found in (
            ("TPOT", self.tpot_p99_ms, point.tpot_p99_ms),
            ("TTFT", self.ttft_p99_ms, point.ttft_p99_ms),
        ):
            if limit is not None and (found is None or found > limit):
                told.append(f"{name} p99 {'unknown' if found is None else f'{found:,.0f} ms'}")
        return told


@dataclass(frozen=True, slots=True)
class Point:
    """One run: so many requests in flight, so many tokens in a step at most."""

    seats: int
    batched_tokens: int
    tokens_per_s: float
    tpot_p99_ms: float | None
    ttft_p99_ms: float | None


Measure = Callable[[int], Point]
"""Runs a load of so many requests at once on the services that are up."""


def steps_of(most: int) -> list[int]:
    """The numbers of seats that are tried: 1, 2, 4 and so on, and the most."""
    found = [1]
    while found[-1] * 2 <= most:
        found.append(found[-1] * 2)
    return found if found[-1] == most else [*found, most]


def search_seats(measure: Measure, target: Target, most: int = MOST_SEATS) -> list[Point]:
    """The points that were tried: the largest number that keeps the target is among them, if any does."""
    steps = steps_of(most)
    tried: dict[int, Point] = {}
    low, high = 0, len(steps)  # steps[:low] keep the target, steps[high:] do not
    while low < high:
        middle = (low + high) // 2
        point = tried[middle] = measure(steps[middle])
        if target.misses(point):
            high = middle
        else:
            low = middle + 1
    return [tried[index] for index in sorted(tried)]


def frontier(points: Sequence[Point]) -> list[Point]:
    """Points that no other beats in both throughput and time per token, the slowest first."""
    best = []
    fastest = float("inf")
    for point in sorted(points, key=lambda point: (-point.tokens_per_s, point.tpot_p99_ms or 0.0)):
        tpot = point.tpot_p99_ms if point.tpot_p99_ms is not None else 0.0
        if tpot < fastest:
            best.append(point)
            fastest = tpot
    return best[::-1]


def choose(points: Sequence[Point], target: Target) -> Point | None:
    """The point of most tokens a second among those that keep the target; None when none does."""
    kept = [point for point in points if not target.misses(point)]
    return max(kept, key=lambda point: point.tokens_per_s, default=None)
