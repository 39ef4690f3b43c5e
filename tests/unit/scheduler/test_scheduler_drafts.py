"""Steps of several tokens: drafts get what nobody else wants, and results say what became of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hundredfold_scheduler.core.beam_search import BeamTerms
from hundredfold_scheduler.core.failures import WorkerProtocolError
from hundredfold_scheduler.core.integrity import check_all
from hundredfold_scheduler.core.step import EndReason, RowEnd, StepResult
from support.fake_worker import Script, expected_output
from support.scheduler_harness import SMALL, Harness

DRAFTING = replace(SMALL, max_draft_tokens=4, max_draft_rows=8)


def decoding(limits=DRAFTING, prompts: int = 1, max_tokens: int = 100, **more: object) -> Harness:
    """Prompts of 10 tokens that are computed, one plan at a time."""
    harness = Harness(limits, plans_in_flight=1, **more)  # type: ignore[arg-type]
    for stream_id in range(prompts):
        harness.submit(stream_id, [50 + stream_id] * 10, max_tokens)
    while len(harness.plans) < 1 or any(not r.ids for r in harness.received.values()):
        harness.turn()
    return harness


def test_rows_that_decode_may_draft() -> None:
    harness = decoding(prompts=2)
    harness.plan_ahead()
    plan = harness.plans[-1]
    assert (plan.num_tokens, plan.num_draft_tokens) == ([1, 1], [4, 4])
    harness.run()
    harness.assert_empty()
    assert harness.scheduler.state.totals.accepted_tokens > 0


def test_nobody_drafts_where_the_worker_does_not() -> None:
    harness = decoding(replace(SMALL, max_draft_tokens=0, max_draft_rows=8))
    harness.run()
    assert all(not plan.num_draft_tokens for plan in harness.plans)


def test_nobody_drafts_in_a_batch_too_large_for_it() -> None:
    """Report 51: where a step is faster without drafts, none is planned; with fewer rows they come back."""
    harness = decoding(replace(DRAFTING, max_draft_rows=2), prompts=3)
    harness.plan_ahead()
    assert len(harness.plans[-1].slots) == 3
    assert harness.plans[-1].num_draft_tokens == []
    harness.cancel(0)
    harness.take_result()
    harness.plan_ahead()
    assert harness.plans[-1].num_draft_tokens == [4, 4]


def test_drafts_are_part_of_the_budget_and_come_last() -> None:
    """A prompt gets all that it wants first; what is left is shared alike."""
    limits = replace(DRAFTING, max_num_batched_tokens=16)
    harness = decoding(limits, prompts=3)
    harness.plan_ahead()
    assert harness.plans[-1].num_draft_tokens == [4, 4, 4]
    harness.submit(9, [7] * 7)
    harness.take_result()
    harness.plan_ahead()
    plan = harness.plans[-1]
    assert (plan.num_tokens, plan.num_draft_tokens) == ([1, 1, 1, 7], [2, 2, 2, 0])
    harness.submit(10, [8] * 200)
    harness.take_result()
    harness.plan_ahead()
    assert sum(harness.plans[-1].num_tokens) == 16
    assert harness.plans[-1].num_draft_tokens == []


def test_drafts_end_where_the_answer_does() -> None:
    """Report 48: nothing is reserved beyond the last token that is ever computed."""
    harness = decoding(max_tokens=4)
    harness.plan_ahead()
    # one token is there; two more are computed, the last one never is
    assert harness.plans[-1].num_draft_tokens == [2]
    harness.run()
    harness.assert_empty()


def test_drafts_take_no_memory_that_is_promised_or_scarce() -> None:
    """No block is left: the row drafts to the end of its last one, and nobody is preempted for it."""
    harness = decoding(replace(DRAFTING, num_blocks=2), prompts=2, max_tokens=6)
    harness.plan_ahead()
    plan = harness.plans[-1]
    assert plan.grown_block_ids == []
    assert plan.num_draft_tokens == [4, 4]  # 10 + 1 + 4 of 16
    harness = decoding(replace(DRAFTING, num_blocks=2), prompts=1, max_tokens=20)
    sequence = next(iter(harness.seats.running.values()))
    while sequence.total < 14:
        harness.turn()
    harness.run()
    harness.assert_empty()
    assert harness.scheduler.state.totals.preemptions == 0


def test_beams_do_not_draft() -> None:
    harness = Harness(DRAFTING)
    harness.submit(0, [5] * 10, 8, beams=BeamTerms(3, 1.0, False), n=1)
    harness.run()
    assert any(len(plan.branches) for plan in harness.plans)
    assert all(not any(plan.num_draft_tokens) for plan in harness.plans)


@pytest.mark.parametrize("plans_in_flight", [1, 2])
def test_plans_ahead_name_upper_bounds(plans_in_flight: int) -> None:
    """The same answer however many drafts were right, with blocks for no more than was in doubt."""
    for seed in range(8):
        harness = Harness(DRAFTING, plans_in_flight)
        harness.worker.luck.seed(seed)
        received = harness.submit(0, [4] * 10, 60, Script(stop_at=31))
        while harness.turn():
            check_all(harness.scheduler.state)
        assert received.ids == expected_output([4] * 10, 60, Script(stop_at=31), DRAFTING.vocab_size)
        assert received.finished is not None
        assert received.finished.reason is EndReason.STOP
        assert len(harness.plans) < 31
        harness.assert_empty()


def test_served_tokens_are_those_delivered() -> None:
    """Fair shares count what was answered, neither drafts nor steps."""
    harness = decoding(max_tokens=50)
    harness.run()
    totals = harness.scheduler.state.totals
    assert totals.output_tokens == 50
    assert totals.accepted_tokens <= totals.drafted_tokens
    # each step computes its token and its drafts; the prompt's 10 and no last token
    assert totals.computed_tokens == 10 + 49 - totals.accepted_tokens + totals.drafted_tokens
    assert totals.prefill_tokens == 10


BAD = {
    "more drafts than allowed": {"num_drafted_tokens": [5]},
    "more ids than drafts and one": {"num_drafted_tokens": [1], "num_output_tokens": [3]},
    "numbers for other rows": {"num_drafted_tokens": [1, 1]},
    "drafts that were right are both": {"num_computed_tokens": [12]},
    "planned were": {"num_computed_tokens": [17], "num_output_tokens": [6]},
}


@pytest.mark.parametrize("what", BAD)
def test_results_that_cannot_be_true(what: str) -> None:
    harness = decoding()
    harness.plan_ahead()
    fields = {"num_computed_tokens": [13], "num_output_tokens": [3], "num_drafted_tokens": [2]} | BAD[what]
    result = StepResult(harness.plans[-1].step, token_ids=[9] * sum(fields["num_output_tokens"]), **fields)
    with pytest.raises(WorkerProtocolError):
        harness.scheduler.apply(harness.seats, result, harness.now)


def test_an_end_inside_the_drafts() -> None:
    """Report 43: what lies behind the stop id was never there."""
    harness = decoding()
    harness.plan_ahead()
    harness.results.clear()
    step = harness.plans[-1].step
    result = StepResult(step, [12], [2], [9, 2], [RowEnd(0, EndReason.STOP, 2)], num_drafted_tokens=[4])
    harness.scheduler.apply(harness.seats, result, harness.now)
    harness.read()
    received = harness.received[0]
    assert received.ids[1:] == [9, 2]
    assert received.finished is not None
    assert received.finished.stop_token_id == 2
    totals = harness.scheduler.state.totals
    assert (totals.output_tokens, totals.drafted_tokens, totals.accepted_tokens) == (3, 4, 1)
