"""The prefix cache: what may be shared, what is counted, and that nothing stale or foreign is ever read.

The fake worker checks every cache position that a sequence reads against the tokens it should hold.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from support.fake_worker import Script, expected_output
from support.scheduler_harness import SMALL, Harness, Received

STEM = [3 + i * 17 % 900 for i in range(80)]


def ask(harness: Harness, stream_id: int, prompt: list[int], max_tokens: int = 4, **more: object) -> Received:
    received = harness.submit(stream_id, prompt, max_tokens, **more)  # type: ignore[arg-type]
    harness.run()
    assert received.finished is not None
    assert received.ids == expected_output(prompt, max_tokens, Script(), 1000)
    return received


def cached(received: Received) -> int:
    assert received.finished is not None
    return received.finished.account.cached_tokens


@pytest.mark.parametrize("plans_in_flight", [1, 2])
def test_a_repeat_reads_all_full_blocks_but_computes_a_token(plans_in_flight: int) -> None:
    """Item 37: full blocks are reused, at most prompt - 1 tokens, so that there is a logit to sample from."""
    harness = Harness(plans_in_flight=plans_in_flight)
    assert cached(ask(harness, 0, STEM)) == 0
    assert cached(ask(harness, 1, STEM)) == 64
    assert cached(ask(harness, 2, STEM[:79])) == 64
    assert cached(ask(harness, 3, [*STEM, 5])) == 80
    assert cached(ask(harness, 4, STEM[:15])) == 0
    assert cached(ask(harness, 5, STEM[:17])) == 16


def test_the_same_prompt_five_times_gives_the_same_answer() -> None:
    """Item 35, item 41: repeated alone and beside seven others."""
    harness = Harness()
    answers = [ask(harness, i, STEM, 20).ids for i in range(3)]
    for i in range(7):
        harness.submit(100 + i, [7 + i] * 30, 20)
    answers += [ask(harness, 10 + i, STEM, 20).ids for i in range(2)]
    assert all(answer == answers[0] for answer in answers)


def test_answers_are_cached_too() -> None:
    """A follow-up of a conversation finds prompt and answer."""
    harness = Harness()
    first = ask(harness, 0, STEM, 20)
    follow_up = STEM + first.ids + [9, 9]
    assert cached(ask(harness, 1, follow_up)) == 96


def test_what_is_counted_is_what_the_worker_skipped() -> None:
    """Item 39: usage equals the worker's own counter."""
    harness = Harness()
    total = sum(cached(ask(harness, i, STEM[: 20 + 7 * i] + [i + 3] * 5)) for i in range(9))
    assert total == harness.worker.reused_tokens == harness.scheduler.state.totals.cached_tokens > 0


@pytest.mark.parametrize("plans_in_flight", [1, 2])
def test_what_is_counted_survives_preemptions_and_cancels(plans_in_flight: int) -> None:
    """Item 39: a request that begins again, or ends early, is told no hit that its first token did not have;
    the sum over all is the worker's own counter.
    """
    harness = Harness(replace(SMALL, num_blocks=14), plans_in_flight)
    ask(harness, 0, STEM)
    received = {i: harness.submit(i, [*STEM, i, i], 60) for i in (1, 2, 3)}
    cut = harness.submit(9, [*STEM, 9], 60)
    for _ in range(4):
        harness.turn()
    harness.cancel(9)
    harness.run()
    totals = harness.scheduler.state.totals
    assert totals.preemptions > 0
    assert totals.cached_tokens == harness.worker.reused_tokens
    assert not cut.ended
    for i, answer in received.items():
        assert answer.ids == expected_output([*STEM, i, i], 60, Script(), 1000)
        assert cached(answer) == 80
    assert totals.cached_tokens > 4 * 80  # those that began again read the cache once more


def test_hits_are_looked_up_when_the_request_starts() -> None:
    """Item 34: queued while there was a hit, evicted before it runs: correct, and counted as it was."""
    harness = Harness(replace(SMALL, max_model_len=512, num_blocks=16, max_num_seqs=1))
    ask(harness, 0, STEM)
    harness.submit(1, [500 + i for i in range(217)], 40)
    harness.turn()
    queued = harness.submit(2, STEM, 4)
    harness.run()
    assert queued.ids == expected_output(STEM, 4, Script(), 1000)
    assert cached(queued) == 0
    assert cached(ask(harness, 3, STEM)) == 64


def test_hits_that_appear_while_queued_are_used() -> None:
    harness = Harness(replace(SMALL, max_num_seqs=1))
    harness.submit(0, STEM, 4)
    second = harness.submit(1, STEM, 4)
    harness.run()
    assert cached(second) == 64


def test_one_that_did_not_fit_starts_as_soon_as_its_prefix_is_there() -> None:
    """The second one's prompt is the first one's: computed, it leaves a single block to be found."""
    prompt = [3 + i % 200 for i in range(200)]
    harness = Harness(replace(SMALL, num_blocks=17, max_num_batched_tokens=256))
    first, second = (harness.submit(i, prompt, 20) for i in (0, 1))
    while not second.ids:
        harness.turn()
        assert not first.ended, "it waited for the first one's end"
    harness.run()
    assert first.ids == second.ids == expected_output(prompt, 20, Script(), 1000)


def test_a_block_is_shared_only_when_a_result_confirmed_it() -> None:
    """A prompt that is still being computed cannot be hit, however much of it is planned."""
    harness = Harness(replace(SMALL, max_num_batched_tokens=32))
    harness.submit(0, STEM, 4)
    for blocks in (0, 2, 4, 5):
        harness.plan_ahead()
        assert len(harness.seats.cache.index) == blocks
        harness.take_result()


def test_another_salt_or_adapter_is_cold() -> None:
    """Item 40: the same prompt under another salt is cold; under the same one it hits."""
    harness = Harness()
    assert cached(ask(harness, 0, STEM, cache_salt=b"a")) == 0
    assert cached(ask(harness, 1, STEM, cache_salt=b"b")) == 0
    assert cached(ask(harness, 2, STEM)) == 0
    assert cached(ask(harness, 3, STEM, cache_salt=b"a")) == 64
    assert cached(ask(harness, 4, STEM, adapter="lora")) == 0


@pytest.mark.parametrize("fingerprint", ["other", SMALL.model_fingerprint])
def test_a_worker_with_another_model_finds_nothing(fingerprint: str) -> None:
    """Item 32: the model's fingerprint is part of the hash, and an index lives no longer than its worker,
    since other weights may have the same headers.
    """
    harness = Harness()
    ask(harness, 0, STEM)
    harness.kill_worker()
    harness.start_worker(replace(SMALL, model_fingerprint=fingerprint))
    assert cached(ask(harness, 1, STEM)) == 0


def test_skipping_reads_nothing_and_still_fills() -> None:
    """Item 36: a request for prompt scores computes its whole prompt, twice."""
    harness = Harness()
    ask(harness, 0, STEM)
    assert cached(ask(harness, 1, STEM, skip_prefix_cache=True)) == 0
    assert cached(ask(harness, 2, STEM)) == 64


def test_near_misses_do_not_hit() -> None:
    """Item 30: permutations and neighbours of a prompt share no block with it."""
    harness = Harness(replace(SMALL, num_blocks=32))
    ask(harness, 0, STEM)
    moved = STEM.copy()
    moved[3] += 1
    moved[4] -= 31
    assert cached(ask(harness, 1, moved)) == 0
    rng = random.Random(4)
    for i in range(10):
        head = rng.sample(STEM[:16], 16)
        assert cached(ask(harness, 10 + i, head + STEM[16:])) == (64 if head == STEM[:16] else 0)


def test_beginnings_stay_longest() -> None:
    """The tail of a sequence is evicted before its head, which is what others share."""
    harness = Harness(replace(SMALL, num_blocks=8))
    ask(harness, 0, STEM)
    ask(harness, 1, [600 + i for i in range(75)])
    assert cached(ask(harness, 2, STEM)) == 48


def test_everything_can_be_reclaimed() -> None:
    """Item 18: fifty requests with one beginning, use never above 100 %, then every block can be taken
    anew.
    """
    harness = Harness(replace(SMALL, max_model_len=1100))
    for i in range(50):
        harness.submit(i, STEM + [3 + i] * (1 + i % 9), 6)
    while harness.turn():
        load = harness.scheduler.load()
        assert load.free_blocks + load.cached_blocks + load.used_blocks == load.total_blocks
        assert load.used_blocks <= load.total_blocks
    harness.assert_empty()
    assert cached(ask(harness, 100, [700 + i % 200 for i in range(63 * 16)])) == 0
    harness.assert_empty()


def test_two_with_one_prompt_at_once_share_later_and_hold_one_copy_in_the_index() -> None:
    harness = Harness(replace(SMALL, max_num_batched_tokens=256))
    both = [harness.submit(i, STEM, 4) for i in range(2)]
    harness.run()
    assert [cached(r) for r in both] == [0, 0]
    assert len(harness.seats.cache.index) == harness.seats.cache.pool.num_cached == 5
    harness.assert_empty()


def test_a_failed_sequence_leaves_nothing_to_hit() -> None:
    """Non-finite values that a prompt left in the cache must not reach who shares its beginning."""
    harness = Harness()
    failing = harness.submit(0, STEM, 20, Script(fail_at=3))
    harness.run()
    assert failing.failure is not None
    assert failing.ids == expected_output(STEM, 2, Script(), 1000)
    assert cached(ask(harness, 1, STEM)) == 0
    harness.assert_empty()


def test_a_victim_that_fails_by_its_pending_result_leaves_nothing_to_hit_either() -> None:
    """Its blocks were given back, named, before the result that says what is in them."""
    met = 0
    for fail_at in range(2, 60):
        harness = Harness(replace(SMALL, num_blocks=12, max_num_seqs=2))
        harness.submit(0, [7] * 90, 70)
        failing = harness.submit(1, STEM, 70, Script(fail_at=fail_at))
        while harness.plan_ahead() or harness.results:
            met += any(s.num_output == fail_at - 1 for s in harness.seats.parked.values())
            harness.take_result()
        assert failing.failure is not None
        assert cached(ask(harness, 2, STEM)) == 0
    assert met
