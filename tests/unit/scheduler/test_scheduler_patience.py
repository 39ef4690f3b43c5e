"""How long a request is left to the worker that is the place for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hundredfold_scheduler.core.admission import PATIENCE_PLANS, PATIENCE_S
from support.fake_worker import Script, expected_output
from support.scheduler_harness import SMALL, Received
from support.scheduler_house import House

ROOMY = replace(SMALL, num_blocks=512, max_num_seqs=32, max_num_batched_tokens=128)
STEM = [3 + i * 7 % 900 for i in range(96)]


def assert_right(received: Received, ids: list[int], max_tokens: int) -> None:
    assert received.finished is not None
    assert received.ids == expected_output(ids, max_tokens, Script(), SMALL.vocab_size)


def test_the_moment_a_worker_gets_late_is_waited_for() -> None:
    """A request was left to the worker that has its prefix, whose result does not come. Nothing else happens
    either: the other worker is asked again when the first one gets late, and not once more for nothing.
    """
    house = House(fleet={"a": ROOMY, "b": ROOMY})
    house.submit(0, STEM, 60)
    while len(house.received[0].ids) < 3:
        house.turn()
    (home,) = house.homes(0)
    other = "b" if home == "a" else "a"
    assert house.plan_for(home)
    house.submit(1, [*STEM, 5], 5)
    house.plan_for(other)
    assert house.homes(1) == []
    due = house.scheduler.next_due(house.now)
    assert due is not None
    assert due == pytest.approx(house.rigs[home].seats.in_flight[0].sent_at + PATIENCE_S)
    house.now = due
    assert house.scheduler.next_due(house.now) is None
    house.plan_for(other)
    assert house.homes(1) == [other]
    house.run()
    assert_right(house.received[1], [*STEM, 5], 5)


def test_a_busy_worker_takes_what_another_has_room_for_and_does_not_seat() -> None:
    """The worker that has the prefix has room, and starts nobody; the other one, busy too, waits for some of
    its plans and then no longer.
    """
    house = House(fleet={"a": ROOMY, "b": ROOMY})
    house.submit(0, STEM, 200)
    while len(house.received[0].ids) < 3:
        house.turn()
    (home,) = house.homes(0)
    other = "b" if home == "a" else "a"
    house.rigs[home].seats.silent = True
    house.submit(1, [3 + (7919 + i * 31) % 990 for i in range(30)], 200)
    while not house.received[1].ids:
        house.turn()
    house.rigs[home].seats.silent = False
    house.rigs[home].seats.last_start = 10**9  # a pace that lets nobody start
    house.submit(2, [*STEM, 5], 5)
    before = len(house.rigs[home].plans)
    while not house.homes(2):
        for name in (home, other):  # nobody is late
            house.plan_for(name)
        for rig in house.rigs.values():
            house.scheduler.apply(rig.seats, rig.results.popleft(), house.now)
        house.read()
    assert house.homes(1) == house.homes(2) == [other]
    assert PATIENCE_PLANS < len(house.rigs[home].plans) - before < 3 * PATIENCE_PLANS
    house.run()
    assert_right(house.received[2], [*STEM, 5], 5)
    house.assert_empty()
