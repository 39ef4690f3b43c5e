"""Beam groups in the core: one result whatever happens to them, and not a block lost."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from hundredfold_scheduler.core.beam_search import BeamTerms, Continuation
from hundredfold_scheduler.core.failures import Code, WorkerProtocolError
from hundredfold_scheduler.core.integrity import check_all
from hundredfold_scheduler.core.step import RowCandidates
from support.fake_worker import Script, expected_beams, expected_output
from support.scheduler_harness import SMALL, Harness, Received

PROMPT = [3 + i % 90 for i in range(40)]
FOUR = BeamTerms(4, 1.0, early_stopping=False)


def check(received: Received, terms: BeamTerms, max_tokens: int, prompt: list[int] = PROMPT) -> None:
    """The choices are the best beams of a search that nobody disturbed."""
    assert received.failure is None
    best = expected_beams(prompt, max_tokens, terms, SMALL.vocab_size)
    for choice, right in zip(received.choices, best, strict=False):
        assert choice.finished is not None
        assert choice.ids == list(right.output)
        assert choice.finished.reason is right.reason
        assert choice.finished.stop_token_id == right.stop_token_id
        assert choice.finished.beam_score == right.score


@pytest.mark.parametrize("plans_in_flight", [1, 2])
@pytest.mark.parametrize("width", [2, 3, 8])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 40])
def test_the_search_is_the_same_through_plans_and_blocks(
    width: int, length: int, plans_in_flight: int
) -> None:
    harness = Harness(plans_in_flight=plans_in_flight)
    terms = BeamTerms(width, 0.7, early_stopping=False)
    received = harness.submit(0, PROMPT[:length], 40, beams=terms, n=2)
    while harness.turn():
        check_all(harness.scheduler.state)
    check(received, terms, 40, PROMPT[:length])
    harness.assert_empty()
    assert sum(len(plan.copies) for plan in harness.plans) > 0


def test_a_group_is_in_one_plan_at_a_time_and_disturbs_nobody() -> None:
    harness = Harness()
    beams = harness.submit(0, PROMPT, 20, beams=FOUR)
    beside = harness.submit(1, [7] * 10, 60)
    harness.run()
    check(beams, FOUR, 20)
    assert beside.ids == expected_output([7] * 10, 60, Script(), SMALL.vocab_size)
    harness.assert_empty()


def test_a_group_waits_for_all_its_seats_and_is_not_starved() -> None:
    """It needs its seats at once; others overtake it only so often."""
    harness = Harness(replace(SMALL, max_num_seqs=4))
    first = [harness.submit(i, [7 + i] * 10, 30) for i in range(4)]
    beams = harness.submit(10, PROMPT, 8, beams=FOUR)
    later = [harness.submit(20 + i, [50 + i] * 10, 30) for i in range(60)]
    for _ in range(400):
        harness.turn()
    assert beams.ended
    harness.run()
    check(beams, FOUR, 8)
    assert all(received.ended for received in (*first, *later))
    harness.assert_empty()


@pytest.mark.parametrize("turns", range(1, 30, 3))
def test_cancelled_at_any_moment(turns: int) -> None:
    harness = Harness()
    harness.submit(0, PROMPT, 40, beams=BeamTerms(5, 1.0, early_stopping=False))
    for _ in range(turns):
        harness.turn()
    harness.cancel(0)
    harness.run()
    harness.assert_empty()


@pytest.mark.parametrize("turns", range(1, 40, 3))
def test_replayed_as_a_group(turns: int) -> None:
    """The selected histories are computed again, and the search goes on as if nothing had been."""
    harness = Harness()
    received = harness.submit(0, PROMPT, 40, beams=FOUR, n=4)
    for _ in range(turns):
        harness.turn()
    ended = received.ended
    harness.kill_worker()
    check_all(harness.scheduler.state)
    harness.start_worker()
    harness.run()
    check(received, FOUR, 40)
    harness.assert_empty()
    assert ended or harness.scheduler.state.totals.replays == 1


def test_preempted_as_a_group() -> None:
    """An earlier request takes the memory of all beams, and they come back with the same result."""
    limits = replace(SMALL, num_blocks=10)
    harness = Harness(limits)
    first = harness.submit(0, [7] * 10, 130)
    beams = harness.submit(1, PROMPT, 40, beams=FOUR)
    harness.run()
    check(beams, FOUR, limits.room_for_output(40, 4))
    assert first.ids == expected_output([7] * 10, 130, Script(), SMALL.vocab_size)
    assert beams.finished is not None
    assert beams.finished.account.preemptions > 0
    harness.assert_empty()


def test_a_group_that_just_fits_the_cache_alone() -> None:
    """The answer is cut to what all beams can hold at once; with that it always gets to its end."""
    for length in (1, 16, 30, 40):
        for blocks in (8, 9, 11):
            limits = replace(SMALL, num_blocks=blocks)
            harness = Harness(limits)
            received = harness.submit(0, PROMPT[:length], 200, beams=FOUR)
            harness.run()
            check(received, FOUR, limits.room_for_output(length, 4), PROMPT[:length])
            harness.assert_empty()


def test_what_can_never_run_is_refused() -> None:
    harness = Harness(replace(SMALL, max_num_seqs=3))
    received = harness.submit(0, PROMPT, 8, beams=FOUR)
    harness.read()
    assert received.failure is not None
    assert received.failure.code == Code.INVALID_ARGUMENT
    assert received.failure.field == "sampling.beam_width"
    assert "max_num_seqs is 3" in received.failure.message
    small = Harness(replace(SMALL, num_blocks=3))
    cramped = small.submit(0, PROMPT, 8, beams=FOUR)
    small.read()
    assert cramped.failure is not None
    assert "3 blocks" in cramped.failure.message


def test_one_token_needs_no_room_for_beams_apart() -> None:
    """At the cache's edge, where a second token of two beams would not fit: the search is over before it."""
    limits = replace(SMALL, num_blocks=3)
    two = BeamTerms(2, 1.0, False)
    assert limits.room_for_output(40, 2) < 1
    harness = Harness(limits)
    received = harness.submit(0, PROMPT[:40], 1, beams=two)
    harness.run()
    check(received, two, 1, PROMPT[:40])
    harness.assert_empty()


def test_blocks_are_counted_by_a_beam_that_goes_on() -> None:
    """The best beam before may be one that nobody goes on from, and rests by then."""
    harness = Harness()
    harness.submit(0, PROMPT, 20, beams=FOUR)
    group = next(iter(harness.scheduler.state.requests.values())).beams
    assert group is not None
    best, other = group.members[:2]
    best.become(array("I"))
    other.become(array("I", PROMPT))
    group.live = [best, other]
    group.chosen = [Continuation(1, 5, -1.0), Continuation(1, 6, -2.0), Continuation(1, 7, -3.0)]
    assert group.blocks_to_branch(16) == 2
    assert group.blocks_to_branch(8) == 0


def test_a_beam_that_fails_ends_the_request() -> None:
    harness = Harness()
    received = harness.submit(0, PROMPT, 20, Script(fail_at=3), beams=FOUR)
    harness.run()
    assert received.failure is not None
    assert received.failure.code == Code.INTERNAL
    harness.assert_empty()


def test_a_worker_that_gives_no_candidates_is_not_believed() -> None:
    harness = Harness(plans_in_flight=1)
    harness.submit(0, PROMPT, 20, beams=FOUR)
    plan = harness.scheduler.plan(harness.seats, harness.now)
    assert plan is not None
    result = harness.worker.step(plan)
    found = result.candidates
    result.candidates = []
    with pytest.raises(WorkerProtocolError, match="candidates"):
        harness.scheduler.apply(harness.seats, result, harness.now)
    result.candidates = [RowCandidates(9, found[0].candidates)]
    with pytest.raises(WorkerProtocolError, match="row 9"):
        harness.scheduler.apply(harness.seats, result, harness.now)
