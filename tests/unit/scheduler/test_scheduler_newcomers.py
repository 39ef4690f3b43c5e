"""Looks at the queue: none is missed that could come to something, and nobody holds up more than needed."""

from __future__ import annotations

from dataclasses import replace

from hundredfold_scheduler.core.beam_search import BeamTerms
from hundredfold_scheduler.core.newcomers import MAX_BYPASSES, MAX_CANDIDATES
from hundredfold_scheduler.core.pacing import StartPace
from support.scheduler_harness import SMALL, Harness
from support.scheduler_house import House


def prompt(seed: int, length: int = 10) -> list[int]:
    return [3 + (seed * 7919 + i * 31) % 990 for i in range(length)]


def test_a_free_seat_is_a_reason_to_look_again() -> None:
    """Two beams wait for two seats. When a seat gets free, another request has grown by as many blocks as
    came free with it: there is no more memory than before, but there are the seats.
    """
    harness = Harness(replace(SMALL, max_num_seqs=3))
    long = harness.submit(0, prompt(0), 200)
    short = harness.submit(1, prompt(1), 60)
    harness.turn()
    beams = harness.submit(2, prompt(2), 4, beams=BeamTerms(2, 1.0, early_stopping=False))
    while not short.ended:
        harness.turn()
    for _ in range(12):
        harness.turn()
    assert beams.ended
    assert not long.ended
    harness.run()
    harness.assert_empty()


def test_one_worker_makes_room_for_a_large_newcomer_and_the_others_go_on() -> None:
    """It fits nowhere beside what runs. Overtaken often enough, it has one worker for itself in time; on the
    others small requests start all the while.
    """
    house = House(fleet=dict.fromkeys("abc", replace(SMALL, num_blocks=24)))
    for i in range(24):
        house.submit(i, prompt(i), 20 + 5 * (i % 12))
    for _ in range(3):
        house.turn()
    large = house.submit(100, prompt(100, 250), 5)
    for i in range(200, 500):
        house.submit(i, prompt(i), 20 + 5 * (i % 12))
    lead = house.scheduler.state.requests["request-100"].lead
    while lead.bypassed < MAX_BYPASSES:
        assert lead.worker is None
        house.turn()
    started = sum(len(rig.seated()) for rig in house.rigs.values())
    while not house.homes(100):
        house.turn()
    started = sum(len(rig.seated()) for rig in house.rigs.values()) - started
    assert started > 10
    while not large.ended:
        house.turn()
    house.run()
    house.assert_empty()


def test_an_idle_worker_takes_what_a_busy_one_has_refused() -> None:
    """One worker has the prefix and a place, and looks for newcomers at every tenth step only. The other one,
    idle, leaves the request to it once.
    """
    pace = StartPace(interval=10)
    house = House(fleet=dict.fromkeys("ab", replace(SMALL, num_blocks=512)), pace=pace)
    stem = prompt(7, 96)
    house.submit(0, stem, 100)
    while len(house.received[0].ids) < 3:
        house.turn()
    (home,) = house.homes(0)
    other = "b" if home == "a" else "a"
    house.submit(1, [*stem, 5], 5)
    house.plan_for(other)
    assert house.homes(1) == []
    house.take_result()
    house.plan_for(home)
    assert house.homes(1) == []
    house.plan_for(other)
    assert house.homes(1) == [other]
    house.run()
    house.assert_empty()


def test_a_line_of_requests_for_the_large_worker_leaves_the_small_one_its_own() -> None:
    """Sixty that only the large worker holds stand before two that the small one could start at once."""
    house = House(fleet={"small": replace(SMALL, max_model_len=64), "large": replace(SMALL, max_num_seqs=1)})
    for i in range(2 * MAX_CANDIDATES):
        house.submit(i, prompt(i, 100), 50)
    for i in range(100, 102):
        house.submit(i, prompt(i), 20)
    for _ in range(3):
        house.turn()
    assert house.homes(100) == house.homes(101) == ["small"]
    house.run()
    house.assert_empty()


def test_a_request_for_a_worker_that_is_away_holds_nobody_up() -> None:
    """The one that is there does not hold it: others overtake it as often as they like."""
    house = House(fleet={"small": replace(SMALL, max_model_len=64, max_num_seqs=2), "large": SMALL})
    house.die("large")
    waits = house.submit(0, prompt(0, 100), 50)
    received = [house.submit(i, prompt(i), 20) for i in range(1, 2 * MAX_BYPASSES + 2)]
    house.run()
    assert all(one.ended for one in received)
    assert not waits.ended
    house.join("large", SMALL)
    house.run()
    house.assert_empty()
