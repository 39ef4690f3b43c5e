"""Plans: one budget, chunked prefill beside decodes, room in memory, preemption without thrash."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hundredfold_scheduler.core.failures import Code
from hundredfold_scheduler.core.newcomers import MAX_BYPASSES
from support.fake_worker import Script, expected_output
from support.scheduler_harness import SMALL, Harness, Received


def prompt(seed: int, length: int) -> list[int]:
    return [3 + (seed * 7919 + i * 31) % 990 for i in range(length)]


def assert_right(received: Received, ids: list[int], max_tokens: int, script: Script = Script()) -> None:  # noqa: B008
    assert received.failure is None
    assert received.finished is not None
    assert received.ids == expected_output(ids, max_tokens, script, 1000)


@pytest.mark.parametrize("plans_in_flight", [1, 2])
def test_a_long_prompt_is_computed_in_chunks_beside_decodes(plans_in_flight: int) -> None:
    """Item 8: a prompt of many chunks never keeps a running answer waiting for more than a step."""
    harness = Harness(replace(SMALL, max_model_len=1024, num_blocks=128), plans_in_flight)
    short = [harness.submit(i, prompt(i, 8), 60) for i in range(4)]
    for _ in range(6):
        harness.turn()
    long = harness.submit(9, prompt(9, 64 * 12), 4)
    before = [len(r.ids) for r in short]
    turns = 0
    while not long.ids:
        harness.turn()
        turns += 1
        after = [len(r.ids) for r in short]
        assert all(b == a + 1 for a, b in zip(before, after, strict=True))
        before = after
    assert turns >= 12
    assert max(sum(plan.num_tokens) for plan in harness.plans) == 64
    harness.run()
    for i, received in enumerate(short):
        assert_right(received, prompt(i, 8), 60)
    assert_right(long, prompt(9, 64 * 12), 4)


def test_a_step_never_passes_its_budget() -> None:
    harness = Harness(replace(SMALL, max_num_batched_tokens=32))
    for i in range(20):
        harness.submit(i, prompt(i, 20 + i), 10)
    harness.run()
    assert max(sum(plan.num_tokens) for plan in harness.plans) == 32
    assert max(len(plan.slots) for plan in harness.plans) == 8


def test_the_next_plan_is_sent_before_the_result() -> None:
    """One step is always in flight: with two plans allowed, the second names the sequence without its
    token.
    """
    harness = Harness()
    harness.submit(0, prompt(0, 10), 5)
    first, second = harness.scheduler.plan(harness.seats, 1.0), harness.scheduler.plan(harness.seats, 1.0)
    assert first is not None
    assert second is not None
    assert (first.num_tokens, second.num_tokens) == ([10], [1])
    assert harness.scheduler.plan(harness.seats, 1.0) is None


def test_no_row_is_planned_past_the_output_limit() -> None:
    """What ends by length is known ahead: no step computes a token that nobody will get."""
    harness = Harness()
    harness.submit(0, prompt(0, 10), 4)
    harness.run()
    assert [plan.num_tokens for plan in harness.plans if plan.slots] == [[10], [1], [1], [1]]
    assert harness.worker.computed_tokens == 10 + 3


@pytest.mark.parametrize("length", [15, 16, 17, 32])
@pytest.mark.parametrize("plans_in_flight", [1, 2])
def test_lengths_at_block_boundaries(length: int, plans_in_flight: int) -> None:
    """Item 26: lengths that divide by the block size, in the prompt and across the answer."""
    harness = Harness(plans_in_flight=plans_in_flight)
    received = [
        harness.submit(i, prompt(i, length), output) for i, output in enumerate([1, 2, 15, 16, 17, 33])
    ]
    harness.run()
    for i, output in enumerate([1, 2, 15, 16, 17, 33]):
        assert_right(received[i], prompt(i, length), output)
    harness.assert_empty()


def test_scoring_alone_computes_the_prompt_and_samples_nothing() -> None:
    harness = Harness()
    received = harness.submit(0, prompt(0, 100), 0)
    harness.run()
    assert received.finished is not None
    assert received.ids == []
    assert harness.worker.computed_tokens == 100


def test_big_request_does_not_block_small_ones_nor_starve() -> None:
    """Item 2: 40 of 64 blocks are held; one that needs 30 waits, ten small ones pass, and it starts in the
    end.
    """
    harness = Harness(replace(SMALL, max_model_len=2048, max_num_seqs=16, max_num_batched_tokens=1024))
    holder = harness.submit(0, prompt(0, 38 * 16), 40)
    harness.turn()
    big = harness.submit(1, prompt(1, 29 * 16), 10)
    small = [harness.submit(10 + i, prompt(10 + i, 8), 4) for i in range(10)]
    while not all(r.finished for r in small):
        harness.turn()
    assert not big.ids
    assert holder.finished is None
    harness.run()
    assert_right(big, prompt(1, 29 * 16), 10)


def test_a_big_request_is_overtaken_a_bounded_number_of_times() -> None:
    """Item 2, the other way: small ones keep coming, and after 32 of them they wait until the big one has
    started.
    """
    harness = Harness(replace(SMALL, max_model_len=2048, max_num_batched_tokens=1024))
    harness.submit(0, prompt(0, 25 * 16), 300)
    harness.turn()
    big = harness.submit(1000, prompt(99, 45 * 16), 4)
    for i in range(2000, 2200):
        harness.submit(i, prompt(i, 8), 2)
        harness.turn()
    assert not big.ids
    harness.run()
    started = [harness.numbers[new.sequence_id] for plan in harness.plans for new in plan.new_sequences]
    assert sum(i >= 2000 for i in started[: started.index(1000)]) == MAX_BYPASSES
    assert_right(big, prompt(99, 45 * 16), 4)


def test_a_waiting_request_starts_as_soon_as_its_memory_is_free() -> None:
    """The queue is not looked at again while nothing has changed, and is when something has."""
    harness = Harness(replace(SMALL, max_model_len=2048, max_num_batched_tokens=1024))
    short = harness.submit(0, prompt(0, 30 * 16), 5)
    long = harness.submit(1, prompt(1, 20 * 16), 200)
    harness.turn()
    waiting = harness.submit(2, prompt(2, 25 * 16), 5)
    while short.finished is None:
        harness.turn()
    assert not waiting.ids
    for _ in range(3):
        harness.turn()
    assert waiting.ids
    assert long.finished is None
    harness.run()


def test_room_is_kept_for_the_first_token_and_for_growth() -> None:
    """Item 7: prompts of one full block each need a second one at once; only as many start as can go on."""
    harness = Harness(replace(SMALL, num_blocks=12, max_num_batched_tokens=512))
    for i in range(8):
        harness.submit(i, prompt(i, 16), 30)
    plan = harness.scheduler.plan(harness.seats, harness.now)
    assert plan is not None
    assert len(plan.slots) == 5


def test_cached_blocks_that_are_hit_are_no_room() -> None:
    """A hit block that nobody holds is counted once: as found, not as free as well."""
    harness = Harness(replace(SMALL, num_blocks=10, max_num_batched_tokens=16))
    stem = prompt(5, 80)
    harness.submit(0, stem, 1)
    harness.run()
    harness.submit(1, prompt(1, 50), 14)
    while harness.scheduler.load().used_blocks < 4:
        harness.turn()
    harness.submit(2, stem + prompt(2, 40), 1)
    harness.turn()
    assert harness.scheduler.load().running == 1
    harness.run()


def test_a_prompt_is_admitted_only_when_all_of_it_fits() -> None:
    """Item 3: no first chunk of what cannot be completed."""
    harness = Harness(replace(SMALL, max_model_len=2048, max_num_batched_tokens=32))
    harness.submit(0, prompt(0, 40 * 16), 100)
    harness.turn()
    harness.submit(1, prompt(1, 40 * 16), 4)
    for _ in range(100):
        harness.turn()
        assert harness.scheduler.load().running == 1
    harness.run()
    assert harness.scheduler.state.totals.preemptions == 0


def test_an_admission_that_fails_changes_nothing() -> None:
    """Admission is a transaction: a candidate that does not fit leaves blocks, hits and promises as they
    were.
    """
    harness = Harness(replace(SMALL, max_model_len=2048, num_blocks=24))
    stem = prompt(5, 64)
    harness.submit(0, stem, 1)
    harness.run()
    harness.submit(1, prompt(1, 300), 60)
    for _ in range(8):
        harness.turn()
    while any(s.capacity - s.reserved < 2 for s in harness.seats.running.values()):
        harness.turn()
    pool = harness.seats.cache.pool
    before = (
        pool.cached_blocks(),
        sorted(pool.free_blocks()),
        list(pool.references),
        harness.seats.cache.promised,
    )
    harness.submit(2, stem + prompt(2, 200), 1)
    plan = harness.scheduler.plan(harness.seats, harness.now)
    assert plan is None or not plan.new_sequences
    after = (
        pool.cached_blocks(),
        sorted(pool.free_blocks()),
        list(pool.references),
        harness.seats.cache.promised,
    )
    assert after == before


def test_a_prompt_that_can_never_fit_is_refused_at_once() -> None:
    """Item 11: INVALID_ARGUMENT naming both numbers; never OK with nothing, never waiting."""
    harness = Harness(replace(SMALL, max_model_len=4096, num_blocks=8))
    received = harness.submit(0, prompt(0, 8 * 16 + 1), 4)
    harness.read()
    assert received.failure is not None
    assert received.failure.code == Code.INVALID_ARGUMENT
    assert "129" in received.failure.message
    assert "128" in received.failure.message
    longest = harness.submit(1, prompt(1, 8 * 16), 4)
    harness.run()
    assert len(longest.ids) == 1
    harness.assert_empty()


def test_a_prompt_beyond_the_model_is_refused() -> None:
    harness = Harness()
    received = harness.submit(0, prompt(0, 256), 4)
    bad_id = harness.submit(1, [3, 1000], 4)
    empty = harness.submit(2, [], 4)
    harness.read()
    assert received.failure is not None
    assert "256 tokens, max_model_len is 256" in received.failure.message
    assert bad_id.failure is not None
    assert "token id 1000" in bad_id.failure.message
    assert empty.failure is not None
    assert {r.failure.code for r in (received, bad_id, empty) if r.failure} == {Code.INVALID_ARGUMENT}


def test_an_answer_ends_where_the_cache_does() -> None:
    """An alone sequence can always grow: its output limit is cut to what fits, so it never preempts
    itself.
    """
    harness = Harness(replace(SMALL, max_model_len=4096, num_blocks=4))
    received = harness.submit(0, prompt(0, 50), 1000)
    harness.run()
    assert_right(received, prompt(0, 50), 4 * 16 - 50 + 1)
    assert harness.scheduler.state.totals.preemptions == 0
    harness.assert_empty()
