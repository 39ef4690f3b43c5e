"""The search for settings, against an engine whose latency is known."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from hundredfold.bench.tune import Point, Target, choose, frontier, search_seats, steps_of
from hundredfold.cli.bench_tune import render_tuning


def engine(seats: int, tokens: int = 512) -> Point:
    """10 ms a step and 1 ms a sequence."""
    step = 10.0 + seats
    return Point(seats, tokens, 1e3 * seats / step, step, 20.0 * seats)


@pytest.mark.parametrize("limit", [11.0, 12.0, 20.0, 75.0, 266.0, 1000.0])
def test_the_search_finds_the_most_seats_that_keep_the_target(limit: float):
    target = Target(tpot_p99_ms=limit)
    points = search_seats(engine, target)
    best = choose(points, target)
    wanted = max(seats for seats in steps_of(256) if 10 + seats <= limit)
    assert best is not None
    assert best.seats == wanted
    assert len(points) <= 4, "halving needs few runs"


def test_no_setting_may_keep_it():
    target = Target(tpot_p99_ms=5.0)
    points = search_seats(engine, target)
    assert choose(points, target) is None
    assert points[0].seats == 1, "the smallest was tried"


def test_both_targets_have_to_hold():
    target = Target(tpot_p99_ms=100.0, ttft_p99_ms=200.0)
    best = choose(search_seats(engine, target), target)
    assert best is not None
    assert best.seats == 8
    assert target.misses(engine(16)) == ["TTFT p99 320 ms"]
    assert target.misses(Point(1, 1, 1.0, None, 1.0)) == ["TPOT p99 unknown"]


def test_steps_end_with_the_most():
    assert steps_of(1) == [1]
    assert steps_of(6) == [1, 2, 4, 6]
    assert steps_of(8) == [1, 2, 4, 8]


def test_the_frontier_leaves_out_what_another_point_beats():
    good, slow, best = (
        Point(4, 256, 100.0, 10.0, 1.0),
        Point(8, 128, 90.0, 20.0, 1.0),
        Point(8, 512, 200.0, 30.0, 1.0),
    )
    assert frontier([best, slow, good]) == [good, best]


def test_the_table_ends_with_the_setting_to_use():
    target = Target(tpot_p99_ms=20.0)
    points = search_seats(engine, target)
    out = io.StringIO()
    Console(file=out, width=120).print(render_tuning(points, target, choose(points, target)))
    assert "hundredfold serve --max-num-seqs 8 --max-num-batched-tokens 512" in out.getvalue()
    out = io.StringIO()
    Console(file=out, width=120).print(render_tuning(points, Target(1.0), None))
    assert "no setting that was tried keeps the target" in out.getvalue()
