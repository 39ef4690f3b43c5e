"""What a replica has yet to be told: merged, cut and bounded."""

from __future__ import annotations

import random

import pytest

from hundredfold_scheduler.core.failures import Code, Failure
from hundredfold_scheduler.core.outbox import Account, FinishedChoice, Outbox
from hundredfold_scheduler.core.step import EndReason, RowScores, Scores, StepResult
from support.fake_worker import Script, expected_output
from support.scheduler_harness import Harness


def add(outbox: Outbox, stream_id: int, offset: int, ids: list[int]) -> None:
    outbox.fresh.stream_ids.append(stream_id)
    outbox.fresh.indexes.append(0)
    outbox.fresh.offsets.append(offset)
    outbox.fresh.counts.append(len(ids))
    outbox.fresh.token_ids.extend(ids)


def rows(outbox: Outbox) -> dict[int, tuple[int, list[int]]]:
    batch = outbox.drain()
    found, start = {}, 0
    for stream_id, offset, count in zip(batch.stream_ids, batch.offsets, batch.counts, strict=True):
        assert stream_id not in found
        found[stream_id] = (offset, batch.token_ids[start : start + count])
        start += count
    return found


def test_steps_that_were_not_sent_are_merged_per_request() -> None:
    outbox = Outbox()
    for step in range(5):
        outbox.begin_step("worker")
        add(outbox, 1, step, [10 + step])
        if step % 2:
            add(outbox, 2, step // 2, [20 + step])
    assert rows(outbox) == {1: (0, [10, 11, 12, 13, 14]), 2: (0, [21, 23])}
    assert not outbox
    assert outbox.nbytes == 0


def test_bytes_are_counted_whatever_happens() -> None:
    """The count that bounds memory is right after any order of adding, cutting, forgetting and draining."""
    rng = random.Random(5)
    outbox, have = Outbox(), dict.fromkeys(range(6), 0)
    for _ in range(2000):
        action = rng.random()
        if action < 0.6:
            outbox.begin_step("worker")
            for stream_id in rng.sample(range(6), rng.randrange(1, 6)):
                count = rng.randrange(1, 4)
                add(outbox, stream_id, have[stream_id], [7] * count)
                have[stream_id] += count
        elif action < 0.7:
            stream_id = rng.randrange(6)
            outbox.truncate(stream_id, 0, max(0, have[stream_id] - rng.randrange(3)))
            have[stream_id] = 0
            outbox.forget(stream_id)
        elif action < 0.8:
            outbox.add_scores(rng.randrange(6), 0, Scores(0, [0.0], [1], 0, [], []))
        elif action < 0.9:
            outbox.forget(rng.randrange(6))
        else:
            outbox.drain()
            assert outbox.nbytes == 0
        assert outbox.nbytes >= 0
        assert (outbox.nbytes > 0) == bool(outbox)


def test_ids_beyond_what_counts_are_cut() -> None:
    outbox = Outbox()
    add(outbox, 1, 4, [1, 2, 3])
    outbox.truncate(1, 0, 5)
    outbox.truncate(9, 0, 0)
    assert rows(outbox) == {1: (4, [1])}
    add(outbox, 1, 4, [1])
    outbox.truncate(1, 0, 2)
    assert rows(outbox) == {}


def test_a_replica_that_does_not_read_loses_its_largest_request_only() -> None:
    """Unread output is bounded: past the cap the largest stream ends RESOURCE_EXHAUSTED, the others go on."""
    harness = Harness(max_unread_bytes=700)
    large = harness.submit(0, [3] * 10, 200)
    small = [harness.submit(i, [3 + i] * 10, 20) for i in range(1, 4)]
    while harness.plan_ahead() or harness.results:
        harness.scheduler.apply(harness.seats, harness.results.popleft(), harness.now)
        assert harness.replica.outbox.nbytes <= 700 + 200
    harness.read()
    assert large.failure is not None
    assert large.failure.code == Code.RESOURCE_EXHAUSTED
    assert "700 bytes" in large.failure.message
    for i, received in enumerate(small, 1):
        assert received.ids == expected_output([3 + i] * 10, 20, Script(), 1000)
    harness.run()
    harness.assert_empty()


def scores(position: int, count: int) -> Scores:
    return Scores(
        position,
        [-float(position + i) for i in range(count)],
        [1] * count,
        2,
        [position + i for i in range(count) for _ in range(2)],
        [0.5] * (2 * count),
    )


@pytest.mark.parametrize(("start", "kept"), [(0, 4), (12, 2), (14, 0), (99, 0)])
def test_scores_can_be_cut_at_their_beginning(start: int, kept: int) -> None:
    tail = scores(10, 4).tail(start)
    assert len(tail.logprobs) == len(tail.ranks) == kept
    assert len(tail.top_token_ids) == len(tail.top_logprobs) == 2 * kept
    if kept:
        assert tail.logprobs[0] == -float(tail.position)
        assert tail.top_token_ids[0] == tail.position


def test_scores_are_delivered_once() -> None:
    """A prompt that is scored again after a preemption or a worker's death is not told twice."""
    harness = Harness(plans_in_flight=1)
    harness.submit(0, [3] * 20, 5)

    def step(*delivered: Scores) -> None:
        plan = harness.scheduler.plan(harness.seats, harness.now)
        assert plan is not None
        result: StepResult = harness.worker.step(plan)
        result.scores = [RowScores(0, part) for part in delivered]
        harness.scheduler.apply(harness.seats, result, harness.now)

    step(scores(1, 19))
    harness.kill_worker()
    harness.start_worker()
    step(scores(1, 20))
    assert harness.plans == []
    told = [part for _, _, part in harness.replica.outbox.drain().scores]
    assert [(part.position, part.end) for part in told] == [(1, 20), (20, 21)]


def test_a_failure_replaces_what_was_not_read() -> None:
    outbox = Outbox()
    for stream_id in (1, 2):
        add(outbox, stream_id, 0, [1, 2])
        outbox.add_scores(stream_id, 0, scores(0, 2))
        outbox.add_finished(
            FinishedChoice(stream_id, 0, EndReason.LENGTH, None, Account(0, 0, 0, 0, preemptions=0))
        )
    before = outbox.nbytes
    outbox.fail(1, Failure(Code.INTERNAL, "no"))
    assert 0 < outbox.nbytes < before
    batch = outbox.drain()
    assert batch.stream_ids == [2]
    assert [stream_id for stream_id, _, _ in batch.scores] == [2]
    assert [ended.stream_id for ended in batch.finished] == [2]
    assert batch.failed == [(1, Failure(Code.INTERNAL, "no"))]


def test_an_ended_request_that_is_dropped_unread_has_failed() -> None:
    """Its end was not read either: told alone it would be a success without the tail."""
    harness = Harness(max_unread_bytes=700)
    ended = harness.submit(0, [3] * 10, 100)
    while harness.scheduler.load().running + harness.scheduler.load().waiting:
        harness.plan_ahead()
        harness.scheduler.apply(harness.seats, harness.results.popleft(), harness.now)
    assert harness.replica.outbox.fresh.finished
    later = harness.submit(1, [4] * 10, 60)
    while harness.plan_ahead() or harness.results:
        harness.scheduler.apply(harness.seats, harness.results.popleft(), harness.now)
    harness.read()
    assert ended.finished is None
    assert ended.failure is not None
    assert ended.failure.code == Code.RESOURCE_EXHAUSTED
    assert later.ids == expected_output([4] * 10, 60, Script(), 1000)
    harness.assert_empty()
