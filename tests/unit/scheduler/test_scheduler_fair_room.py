"""Room kept for owners that hold little: nobody takes it from them, and nobody waits for ever for it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from hundredfold_scheduler.core import fair_room
from hundredfold_scheduler.core.beam_search import BeamTerms
from hundredfold_scheduler.core.observer import Observer
from hundredfold_scheduler.core.policy import CheapestOfLowestPriority, LatestOfLowestPriority, VictimChoice
from hundredfold_scheduler.core.request import Sequence
from support.scheduler_harness import SMALL, Harness


class Victims(Observer):
    """Remembers whom preemptions hit."""

    def __init__(self) -> None:
        self.streams: list[int] = []

    def preempted(self, sequence: Sequence, lost_tokens: int, free_blocks: int) -> None:
        self.streams.append(sequence.stream_id)


def prompt(seed: int, length: int = 10) -> list[int]:
    return [3 + (seed * 7919 + i * 31) % 990 for i in range(length)]


@pytest.mark.parametrize("victims", [CheapestOfLowestPriority(), LatestOfLowestPriority()])
def test_who_holds_much_does_not_take_from_who_holds_little(victims: VictimChoice) -> None:
    """The small tenant came last and has least to compute again: but its blocks would be kept from the one
    that wants more, so that tenant's own requests give way.
    """
    watch = Victims()
    harness = Harness(replace(SMALL, num_blocks=24), victims=victims, observer=watch)
    large = [harness.submit(i, prompt(i, 60), 100, tenant="large") for i in range(3)]
    small = harness.submit(3, prompt(3), 90, tenant="small")
    while not small.ended:
        harness.turn()
        assert harness.now < 1000 + fair_room.RECENT_S + 60
        if harness.now < 1000 + fair_room.RECENT_S:
            assert 3 not in watch.streams
    assert watch.streams
    harness.run()
    assert all(received.ended for received in large)
    harness.assert_empty()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("victims", [CheapestOfLowestPriority(), LatestOfLowestPriority()])
def test_somebody_always_goes_on(victims: VictimChoice, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tenants whose single requests, choices and beams hold more or less than their share of a small cache,
    for as long as they run.
    """
    monkeypatch.setattr(fair_room, "RECENT_S", 1e9)
    rng = random.Random(seed)
    limits = replace(SMALL, num_blocks=rng.choice([16, 20, 33]), max_num_seqs=rng.choice([6, 8]))
    harness = Harness(limits, victims=victims)
    for i in range(24):
        more: dict[str, object] = rng.choice(
            [{}, {}, {"n": 3}, {"beams": BeamTerms(rng.choice([2, 4]), 1.0, early_stopping=False)}]
        )
        length, output = rng.choice([5, 20, 60]), rng.choice([5, 40, 120])
        harness.submit(i, prompt(i, length), output, tenant=rng.choice("aaaabc"), **more)
        for _ in range(rng.choice([0, 1, 9])):
            harness.turn()
    harness.run()
    assert all(received.ended for received in harness.received.values())
    harness.assert_empty()


def test_blocks_that_a_window_hides_are_nobodys_share() -> None:
    """A long answer's table keeps its places; of what they name it holds only the window."""
    harness = Harness(replace(SMALL, sliding_window=40, num_blocks=32))
    long = harness.submit(1, prompt(1, 20), 190, tenant="long")
    while len(long.ids) < 150:
        harness.turn()
    harness.submit(2, prompt(2, 20), 40, tenant="other")
    harness.turn()
    room = fair_room.FairRoom(harness.order)
    running = {harness.numbers[one.number]: one for one in harness.seats.running.values()}
    for sequence in running.values():
        room.saw(sequence, harness.now)
    assert room.num_owners == 2
    assert 2 * (len(running[1].blocks) + 8) > 32
    assert room.has_claim(running[1], harness.seats, 8)
