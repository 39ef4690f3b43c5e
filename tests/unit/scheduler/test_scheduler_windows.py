"""Models whose every layer has a window: blocks that no token to come can see are another's to take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hundredfold_scheduler.core.integrity import check_all
from support.scheduler_harness import SMALL, Harness

WINDOW = 40
WINDOWED = replace(SMALL, sliding_window=WINDOW, num_blocks=32)
MOST = -(-(WINDOW - 1) // 16) + 1 + 64 // 16 + 1
"""Blocks of a window wherever it begins, of a chunk of 64 tokens, and of the one being filled."""


def run(harness: Harness) -> int:
    """Run until nothing is left to do; the most blocks that were in use at once."""
    most = 0
    while harness.turn():
        check_all(harness.scheduler.state)
        most = max(most, harness.seats.cache.pool.num_used)
    return most


@pytest.mark.parametrize("plans_in_flight", [1, 2])
def test_a_long_sequence_holds_no_more_than_its_window(plans_in_flight: int) -> None:
    prompt = [3 + index % 7 for index in range(120)]
    free, windowed = (Harness(limits, plans_in_flight) for limits in (SMALL, WINDOWED))
    for harness in (free, windowed):
        harness.submit(1, prompt, 100)
    most_free, most = run(free), run(windowed)
    assert most_free == -(-219 // 16)
    assert most <= MOST
    assert windowed.received[1].ids == free.received[1].ids
    assert windowed.seats.cache.pool.num_used == 0


def test_what_is_given_back_serves_others_at_once() -> None:
    """Each of these needs 14 blocks at its end; 12 hold two that only keep their windows."""
    tight = Harness(replace(WINDOWED, num_blocks=16, max_model_len=224))
    for stream_id in (1, 2):
        tight.submit(stream_id, [3 + stream_id] * 24, 180)
    run(tight)
    assert all(len(tight.received[stream_id].ids) == 180 for stream_id in (1, 2))
    assert tight.scheduler.state.totals.preemptions == 0


def test_a_prefix_is_found_after_its_first_holder_gave_it_back() -> None:
    harness = Harness(WINDOWED)
    prompt = [3 + index % 11 for index in range(150)]
    harness.submit(1, prompt, 20)
    run(harness)
    computed = harness.worker.computed_tokens
    harness.submit(2, prompt, 20)
    run(harness)
    assert harness.received[2].finished is not None
    assert harness.received[2].ids == harness.received[1].ids
    assert harness.worker.computed_tokens - computed == 150 - 144 + 19  # the fake worker checks what is read


def test_a_beginning_that_was_overwritten_is_computed_anew() -> None:
    """What follows it may still be in the cache; it counts for nothing without its beginning."""
    harness = Harness(replace(WINDOWED, num_blocks=16))
    prompt = [3 + index % 11 for index in range(150)]
    harness.submit(1, prompt, 2)
    run(harness)
    harness.submit(2, [20] * 30, 60)
    run(harness)
    harness.submit(3, prompt, 2)
    run(harness)
    assert harness.received[3].ids == harness.received[1].ids


def test_blocks_go_round_among_windowed_sequences() -> None:
    """So few blocks that each one given back is overwritten soon; the fake worker checks all that is seen."""
    harness = Harness(replace(WINDOWED, num_blocks=14, max_num_batched_tokens=16))
    for stream_id in range(5):
        harness.submit(stream_id, [5 + stream_id] * 24, 190)
    run(harness)
    assert all(len(harness.received[stream_id].ids) == 190 for stream_id in range(5))


def test_preemption_starts_a_windowed_sequence_from_its_beginning() -> None:
    harness = Harness(replace(WINDOWED, num_blocks=9, max_num_seqs=4))
    for stream_id in range(4):
        harness.submit(stream_id, [5 + stream_id] * 20, 90)
    run(harness)
    free = Harness(SMALL)
    for stream_id in range(4):
        free.submit(stream_id, [5 + stream_id] * 20, 90)
    run(free)
    assert harness.scheduler.state.totals.preemptions > 0
    for stream_id in range(4):
        assert harness.received[stream_id].ids == free.received[stream_id].ids


def test_of_a_prefix_that_was_found_only_the_window_is_held() -> None:
    """Blocks before it are another's to take from the first step on."""
    harness = Harness(WINDOWED)
    prompt = [3 + index % 11 for index in range(150)]
    harness.submit(1, prompt, 2)
    run(harness)
    harness.submit(2, prompt, 40)
    harness.turn()
    check_all(harness.scheduler.state)
    assert harness.seats.cache.pool.num_used <= -(-(WINDOW - 1) // 16) + 2
    run(harness)
    assert harness.received[2].ids[:2] == harness.received[1].ids


def test_what_the_window_hides_of_a_prefix_is_not_charged() -> None:
    """Nine blocks are found, three are seen: they fit beside another request, all nine would not."""
    harness = Harness(replace(WINDOWED, num_blocks=11))
    prompt = [3 + index % 11 for index in range(150)]
    harness.submit(1, prompt, 2)
    run(harness)
    harness.submit(2, [900] * 20, 12)
    harness.turn()
    harness.submit(3, prompt, 4)
    while not harness.received[3].ids:
        harness.turn()
        assert harness.received[2].finished is None, "it waited for the other's end"
    run(harness)
    assert harness.received[3].ids[:2] == harness.received[1].ids
