"""Preemption: who gives way, what it costs, and that nobody thrashes, hangs or loses a place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hundredfold_scheduler.core.beam_search import BeamTerms
from hundredfold_scheduler.core.observer import Observer
from hundredfold_scheduler.core.policy import CheapestOfLowestPriority
from hundredfold_scheduler.core.request import Sequence
from support.fake_worker import Script, expected_output
from support.scheduler_harness import SMALL, Harness, Received


class Preemptions(Observer):
    """Remembers who was preempted, and what each admission found in the cache."""

    def __init__(self) -> None:
        self.victims: list[int] = []
        self.facts: list[tuple[str, int, int]] = []
        self.admissions: list[int] = []

    def preempted(self, sequence: Sequence, lost_tokens: int, free_blocks: int) -> None:
        self.victims.append(sequence.stream_id)
        self.facts.append((sequence.request.request_id, lost_tokens, free_blocks))

    def admitted(self, sequence: Sequence, cached_tokens: int) -> None:
        self.admissions.append(sequence.stream_id)


def prompt(seed: int, length: int) -> list[int]:
    return [3 + (seed * 7919 + i * 31) % 990 for i in range(length)]


def assert_right(received: Received, ids: list[int], max_tokens: int, script: Script = Script()) -> None:  # noqa: B008
    assert received.failure is None
    assert received.finished is not None
    assert received.ids == expected_output(ids, max_tokens, script, 1000)


def test_a_preempted_request_keeps_its_place() -> None:
    """Item 1: A, preempted, goes before B of equal priority that arrived earlier and never ran; one
    recomputation.
    """
    watch = Preemptions()
    harness = Harness(replace(SMALL, num_blocks=12, max_num_seqs=2), observer=watch)
    first = harness.submit(0, prompt(0, 60), 120)
    second = harness.submit(1, prompt(1, 60), 60)
    harness.turn()
    waiting = harness.submit(2, prompt(2, 60), 10)
    waiting.ids = waiting.ids
    harness.run()
    assert watch.victims == [1]
    assert watch.admissions == [0, 1, 1, 2]
    assert_right(first, prompt(0, 60), 120)
    assert_right(second, prompt(1, 60), 60)
    assert second.finished is not None
    assert second.finished.account.preemptions == 1
    assert harness.scheduler.state.totals.recomputed_tokens <= 120


def test_two_large_requests_do_not_thrash() -> None:
    """Item 3: two of 0.7 of the capacity each, in chunks of 32: at most two preemptions, both finish."""
    for split in (0.2, 0.5, 0.69):
        capacity = 64 * 16
        harness = Harness(replace(SMALL, max_model_len=2048, max_num_batched_tokens=32))
        length = int(capacity * split)
        output = int(capacity * 0.7) - length
        received = [harness.submit(i, prompt(i, length), output) for i in range(2)]
        harness.run()
        assert harness.scheduler.state.totals.preemptions <= 2
        for i in range(2):
            assert_right(received[i], prompt(i, length), output)


@pytest.mark.parametrize("plans_in_flight", [1, 2])
def test_requests_that_cannot_all_grow_all_finish(plans_in_flight: int) -> None:
    """Item 7: NB = 32, eight requests of 4 + 4 blocks at once. Nobody's cache is reset, nothing hangs."""
    harness = Harness(replace(SMALL, num_blocks=32, max_num_batched_tokens=512), plans_in_flight)
    received = [harness.submit(i, prompt(i, 64), 64) for i in range(8)]
    harness.run()
    for i in range(8):
        assert_right(received[i], prompt(i, 64), 64)
    harness.assert_empty()


@pytest.mark.parametrize("plans_in_flight", [1, 2])
def test_a_decode_goes_on_while_others_are_preempted(plans_in_flight: int) -> None:
    """Item 6: one decode, one chunked long prefill, and a third that has to be preempted: no gap of 20
    steps.
    """
    harness = Harness(
        replace(SMALL, max_model_len=512, num_blocks=26, max_num_batched_tokens=8, max_num_seqs=4),
        plans_in_flight,
    )
    decode = harness.submit(0, prompt(0, 16), 200)
    third = harness.submit(1, prompt(1, 8), 120)
    for _ in range(40):
        harness.turn()
    long = harness.submit(2, prompt(2, 150), 60)
    gap = longest = 0
    while decode.finished is None:
        before = len(decode.ids)
        harness.turn()
        gap = 0 if len(decode.ids) > before else gap + 1
        longest = max(longest, gap)
    assert longest < 20
    harness.run()
    assert harness.scheduler.state.totals.preemptions >= 1
    assert_right(third, prompt(1, 8), 120)
    assert_right(long, prompt(2, 150), 60)


def test_preemption_is_told_with_what_it_costs() -> None:
    """Item 5: request id, tokens thrown away, free blocks; and recomputed beside computed tokens."""
    watch = Preemptions()
    harness = Harness(replace(SMALL, num_blocks=10, max_num_seqs=3), observer=watch)
    for i in range(3):
        harness.submit(i, prompt(i, 20), 100, skip_prefix_cache=True)
    harness.run()
    assert watch.facts
    for request_id, lost_tokens, free_blocks in watch.facts:
        assert request_id.startswith("request-")
        assert lost_tokens >= 20
        assert free_blocks == 0
    totals = harness.scheduler.state.totals
    lost = sum(lost for _, lost, _ in watch.facts)
    assert lost <= totals.recomputed_tokens <= lost + len(watch.facts), (
        "at most the token in flight comes on top"
    )
    assert totals.computed_tokens == harness.worker.computed_tokens
    assert totals.preemptions == len(watch.facts)


def test_the_victim_is_the_latest_of_the_lowest_priority() -> None:
    watch = Preemptions()
    harness = Harness(replace(SMALL, num_blocks=12, max_num_seqs=4), observer=watch)
    harness.submit(0, prompt(0, 20), 100, priority=0)
    harness.submit(1, prompt(1, 20), 100, priority=5)
    harness.submit(2, prompt(2, 20), 100, priority=0)
    harness.submit(3, prompt(3, 20), 100, priority=5)
    harness.run()
    assert watch.victims[:2] == [2, 0]


def test_victim_choice_is_a_point_to_plug_in() -> None:
    """Item 5: another policy, and it is asked."""

    class Earliest:
        asked = 0

        def choose(self, running, wanting):  # type: ignore[no-untyped-def]
            Earliest.asked += 1
            return min(running, key=lambda s: s.number)

    harness = Harness(replace(SMALL, num_blocks=10, max_num_seqs=3), victims=Earliest())
    received = [harness.submit(i, prompt(i, 20), 100) for i in range(3)]
    harness.run()
    assert Earliest.asked
    for i in range(3):
        assert_right(received[i], prompt(i, 20), 100)


def test_beams_cost_what_all_of_them_lose() -> None:
    """A beam shares most of its blocks with the others, and takes them along: the single request, of whose
    tokens fewer have to be computed again, gives way instead.
    """
    watch = Preemptions()
    victims = CheapestOfLowestPriority()
    harness = Harness(replace(SMALL, num_blocks=24), victims=victims, observer=watch)
    first = harness.submit(0, prompt(0, 60), 150)
    terms = BeamTerms(4, 1.0, early_stopping=False)
    beams = harness.submit(1, prompt(1, 100), 60, beams=terms)
    cheap = harness.submit(2, prompt(2, 50), 100)
    harness.run()
    assert watch.victims[:1] == [2]
    assert_right(first, prompt(0, 60), 150)
    assert_right(cheap, prompt(2, 50), 100)
    assert beams.ended
    harness.assert_empty()


def test_what_a_victim_has_yet_to_compute_is_no_backlog() -> None:
    """Newcomers are told from it how busy a worker is: prompts that gave way in the plan do not count."""
    watch = Preemptions()
    harness = Harness(replace(SMALL, num_blocks=14, max_num_batched_tokens=16), 1, observer=watch)
    harness.submit(0, prompt(0, 30), 180)
    while len(harness.received[0].ids) < 60:
        harness.turn()
    harness.submit(1, prompt(1, 110), 5)
    while harness.plan_ahead() or harness.results:
        running = harness.seats.running.values()
        left = sum(min(one.known, one.last_needed) - one.reserved for one in running)
        assert harness.seats.backlog <= left
        harness.take_result()
        harness.now += 1
    assert watch.victims
