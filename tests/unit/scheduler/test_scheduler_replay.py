"""A worker dies, a scheduler restarts: requests go on where they were, and what kills workers ends alone."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from hundredfold_scheduler.core.failures import Code, WorkerProtocolError
from hundredfold_scheduler.core.step import EndReason, StepResult
from support.fake_worker import EOS, Script, expected_output
from support.scheduler_harness import SMALL, Harness


def prompt(seed: int, length: int = 30) -> list[int]:
    return [3 + (seed * 7919 + i * 31) % 990 for i in range(length)]


@pytest.mark.parametrize("plans_in_flight", [1, 2])
def test_nothing_is_lost_or_repeated_when_the_worker_dies(plans_in_flight: int) -> None:
    """Item 124: killed once; every answer is complete and right, block tables of the dead are gone."""
    harness = Harness(plans_in_flight=plans_in_flight)
    received = [harness.submit(i, prompt(i), 20) for i in range(12)]
    for _ in range(7):
        harness.turn()
    harness.kill_worker()
    assert harness.scheduler.load().total_blocks == 0
    assert not harness.turn()
    harness.start_worker()
    harness.run()
    for i in range(12):
        assert received[i].ids == expected_output(prompt(i), 20, Script(), 1000)
    harness.assert_empty()
    totals = harness.scheduler.state.totals
    assert (totals.worker_losses, totals.replays) == (1, 8)


def test_replayed_ones_keep_prompt_and_output_apart_and_go_first() -> None:
    """Penalties, limits and noise depend on which ids were answers."""
    harness = Harness(replace(SMALL, max_num_seqs=2))
    received = [harness.submit(i, prompt(i), 20) for i in range(5)]
    for _ in range(6):
        harness.turn()
    delivered = [list(r.ids) for r in received[:2]]
    harness.kill_worker()
    harness.start_worker()
    made = len(harness.plans)
    harness.turn()
    again = harness.plans[made].new_sequences
    assert [harness.numbers[new.sequence_id] for new in again] == [0, 1]
    for i, new in enumerate(again):
        assert list(new.prompt) == prompt(i)
        assert list(new.output) == delivered[i]
        assert new.num_computed_tokens == 0
    harness.run()


def test_what_was_running_at_two_deaths_runs_alone_and_ends_at_the_third() -> None:
    """The worker dies whenever one request is in a plan: that one ends INTERNAL, the others, replayed alone,
    live.
    """
    harness = Harness(replace(SMALL, max_num_seqs=4), plans_in_flight=1)
    received = [harness.submit(i, prompt(i), 10) for i in range(6)]
    deaths = 0
    for _ in range(500):
        harness.now += 1
        plan = harness.scheduler.plan(harness.seats, harness.now)
        if plan is None:
            break
        running = list(harness.seats.running.values())
        assert not any(s.solo for s in running) or len(running) == 1
        if any(s.stream_id == 2 and s.last_step == plan.step for s in running):
            deaths += 1
            harness.kill_worker()
            harness.start_worker()
        else:
            harness.scheduler.apply(harness.seats, harness.worker.step(plan), harness.now)
        harness.read()
    assert deaths == 3
    assert received[2].failure is not None
    assert received[2].failure.code == Code.INTERNAL
    for i in (0, 1, 3, 4, 5):
        assert received[i].ids == expected_output(prompt(i), 10, Script(), 1000)
    harness.assert_empty()


@pytest.mark.parametrize("have", [0, 1, 5, 9])
def test_a_resubmitted_request_goes_on(have: int) -> None:
    """After a restart of the scheduler the tokenizer says what it has; nothing of it is sent again."""
    harness = Harness()
    right = expected_output(prompt(0), 10, Script(), 1000)
    received = harness.submit(0, prompt(0), 10, priors={0: array("I", right[:have])})
    received.ids = right[:have]
    harness.run()
    assert received.ids == right
    assert received.finished is not None
    harness.assert_empty()


@pytest.mark.parametrize(
    ("prior", "reason", "stop"), [([5] * 10, EndReason.LENGTH, None), ([5, EOS], EndReason.STOP, EOS)]
)
def test_a_resubmitted_request_whose_end_was_lost(
    prior: list[int], reason: EndReason, stop: int | None
) -> None:
    """Only the news of the end is missing: it is told at once, and nothing is computed."""
    harness = Harness()
    received = harness.submit(0, prompt(0), 10, priors={0: array("I", prior)})
    harness.run()
    assert received.finished is not None
    assert (received.finished.reason, received.finished.stop_token_id) == (reason, stop)
    assert harness.worker.computed_tokens == 0
    harness.assert_empty()


def test_requests_queue_while_no_worker_is_there() -> None:
    harness = Harness()
    harness.kill_worker()
    received = [harness.submit(i, prompt(i), 5) for i in range(3)]
    too_long = harness.submit(9, prompt(9, 300), 5)
    assert not harness.turn()
    harness.start_worker()
    harness.run()
    assert all(r.finished is not None for r in received)
    assert too_long.failure is not None
    assert too_long.failure.code == Code.INVALID_ARGUMENT
    harness.assert_empty()


def test_a_smaller_worker_takes_over() -> None:
    """Requests are held against the limits of the worker that is there now, output kept."""
    harness = Harness()
    fits = harness.submit(0, prompt(0), 40)
    grown = harness.submit(1, prompt(1, 100), 100)
    for _ in range(60):
        harness.turn()
    harness.kill_worker()
    harness.start_worker(replace(SMALL, num_blocks=9))
    harness.run()
    assert fits.ids == expected_output(prompt(0), 40, Script(), 1000)
    assert grown.failure is not None
    assert grown.failure.code == Code.RESOURCE_EXHAUSTED
    harness.assert_empty()


def bad_results(good: StepResult) -> dict[str, StepResult]:
    return {
        "another step": replace(good, step=good.step + 1),
        "a row too few": replace(good, num_computed_tokens=list(good.num_computed_tokens)[:-1]),
        "ids that are not counted": replace(good, token_ids=[*good.token_ids, 5]),
        "more computed than planned": replace(
            good, num_computed_tokens=[c + 1 for c in good.num_computed_tokens]
        ),
        "less than before": replace(good, num_computed_tokens=[0 for _ in good.num_computed_tokens]),
        "no id where one is due": replace(good, num_output_tokens=[0, 0], token_ids=[]),
        "two ids": replace(good, num_output_tokens=[2, 2], token_ids=[5, 5, 5, 5]),
    }


@pytest.mark.parametrize("fault", list(bad_results(StepResult(1, [], [], []))))
def test_a_result_that_cannot_be_true_changes_nothing(fault: str) -> None:
    """A worker that contradicts its plans is as good as dead; what it said is not believed."""
    harness = Harness(plans_in_flight=1)
    received = [harness.submit(i, prompt(i), 5) for i in range(2)]
    harness.turn()
    plan = harness.scheduler.plan(harness.seats, harness.now)
    assert plan is not None
    good = harness.worker.step(plan)
    before = [(s.computed, s.total) for s in harness.seats.running.values()]
    with pytest.raises(WorkerProtocolError):
        harness.scheduler.apply(harness.seats, bad_results(good)[fault], harness.now)
    assert [(s.computed, s.total) for s in harness.seats.running.values()] == before
    harness.kill_worker()
    harness.start_worker()
    harness.run()
    for i in range(2):
        assert received[i].ids == expected_output(prompt(i), 5, Script(), 1000)


def test_an_end_that_does_not_come_is_noticed() -> None:
    harness = Harness(plans_in_flight=1)
    harness.submit(0, prompt(0), 1)
    plan = harness.scheduler.plan(harness.seats, harness.now)
    assert plan is not None
    result = harness.worker.step(plan)
    with pytest.raises(WorkerProtocolError, match="does not end sequence"):
        harness.scheduler.apply(harness.seats, replace(result, ends=[]), harness.now)


def test_deadlines_hold_in_every_state() -> None:
    """Item 125: queued, prefilling, decoding, without a worker; what has expired never starts."""
    harness = Harness(replace(SMALL, max_num_seqs=1, max_num_batched_tokens=16))
    decoding = harness.submit(0, prompt(0, 10), 100, deadline_s=12)
    queued = harness.submit(1, prompt(1, 10), 5, deadline_s=6)
    prefilling = harness.submit(2, prompt(2, 200), 5, deadline_s=20)
    gone = harness.submit(3, prompt(3, 10), 5, deadline_s=0)
    unhurried = harness.submit(4, prompt(4, 10), 5, deadline_s=1e6)
    harness.run()
    for received in (decoding, queued, prefilling, gone):
        assert received.failure is not None
        assert received.failure.code == Code.DEADLINE_EXCEEDED
    assert decoding.ids
    assert unhurried.finished is not None
    started = {harness.numbers[new.sequence_id] for plan in harness.plans for new in plan.new_sequences}
    assert started == {0, 2, 4}
    harness.kill_worker()
    waiting = harness.submit(5, prompt(5), 5, deadline_s=3)
    for _ in range(5):
        harness.turn()
    assert waiting.failure is not None
    assert harness.scheduler.next_due(harness.now) is None


def test_hashes_of_the_old_worker_are_not_used_with_the_new_one() -> None:
    """Another block size: what named 16 tokens must not name a block of 32, of which half differ."""
    harness = Harness()
    stem = prompt(7, 16)
    received = [harness.submit(i, stem + prompt(i, 60), 20) for i in range(3)]
    for _ in range(6):
        harness.turn()
    harness.kill_worker()
    harness.start_worker(replace(SMALL, block_size=32, num_blocks=32, max_num_seqs=1))
    harness.run()
    for i in range(3):
        assert received[i].ids == expected_output(stem + prompt(i, 60), 20, Script(), 1000)
    harness.assert_empty()
