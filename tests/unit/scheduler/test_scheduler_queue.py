"""The waiting queue, its order, its bounds, and the heap below it."""

from __future__ import annotations

import gc
import heapq
import random
import time
import weakref
from array import array
from dataclasses import replace

import pytest

from hundredfold_scheduler.core.failures import Code
from hundredfold_scheduler.core.intake import QueueLimits
from hundredfold_scheduler.core.lazy_heap import LazyHeap
from support.scheduler_harness import SMALL, Harness


class Thing:
    """Something that can be weakly referenced."""


def test_heap_keeps_order_under_any_use() -> None:
    rng = random.Random(3)
    heap: LazyHeap[int] = LazyHeap()
    entries = {}
    model: list[tuple[int, int]] = []
    number = 0
    for _ in range(4000):
        action = rng.random()
        if action < 0.5:
            number += 1
            key = rng.randrange(20)
            entries[number] = heap.push(key, number)
            heapq.heappush(model, (key, number))
        elif action < 0.7 and entries:
            gone = rng.choice(list(entries))
            heap.remove(entries.pop(gone))
            model = [m for m in model if m[1] != gone]
            heapq.heapify(model)
        elif model:
            popped = heap.pop()
            assert popped is not None
            assert popped[1] == heapq.heappop(model)[1]
            del entries[popped[1]]
        assert len(heap) == len(model)
    assert sorted(heap.items()) == sorted(m[1] for m in model)


def test_what_was_removed_is_not_held() -> None:
    """Item 22: cancelled entries leave nothing behind, even while the queue never moves."""
    heap: LazyHeap[Thing] = LazyHeap()
    things = [Thing() for _ in range(1000)]
    alive = [weakref.ref(thing) for thing in things]
    entries = [heap.push(0, thing) for thing in things]
    for entry in entries:
        heap.remove(entry)
        heap.remove(entry)
    del things
    gc.collect()
    assert not any(reference() for reference in alive)
    assert len(heap._heap) < 100
    assert heap.pop() is None


def test_a_restored_entry_has_its_old_place() -> None:
    heap: LazyHeap[str] = LazyHeap()
    heap.push(1, "first")
    heap.push(1, "second")
    popped = heap.pop()
    assert popped is not None
    heap.restore(*popped)
    assert [heap.pop()[1], heap.pop()[1]] == ["first", "second"]  # type: ignore[index]


def started(harness: Harness) -> list[int]:
    """Requests in the order in which they were given a seat."""
    return [harness.numbers[new.sequence_id] for plan in harness.plans for new in plan.new_sequences]


def test_priority_goes_first_and_equals_stay_in_order() -> None:
    """Item 10."""
    harness = Harness()
    harness.submit(0, [3] * 10, 20)
    for i in range(1, 8):
        harness.submit(i, [3 + i] * 10, 20)
    harness.turn()
    for i in range(10, 30):
        harness.submit(i, [50 + i] * 10, 4)
    harness.submit(100, [90] * 10, 4, priority=1)
    harness.run()
    order = started(harness)
    assert order[8] == 100
    assert order[9:] == list(range(10, 30))


def test_arrival_counts_from_the_door() -> None:
    """A request that was resubmitted after a restart of the scheduler has not lost its place."""
    harness = Harness()
    for i in range(8):
        harness.submit(i, [3] * 10, 20)
    harness.turn()
    harness.submit(20, [60] * 10, 4)
    harness.submit(21, [61] * 10, 4, age_s=500.0)
    harness.run()
    assert started(harness)[8:] == [21, 20]


def test_the_name_of_a_tenant_is_bounded() -> None:
    """It comes from anybody, and is kept for a while."""
    harness = Harness()
    received = [harness.submit(i, [3] * 10, 4, tenant="t" * (512 + i)) for i in range(2)]
    harness.run()
    assert received[0].finished is not None
    assert received[1].failure is not None
    assert received[1].failure.code == Code.INVALID_ARGUMENT
    assert received[1].failure.field == "tenant"
    assert "513 characters, the limit is 512" in received[1].failure.message


def test_the_queue_is_bounded_by_requests() -> None:
    """Item 126: a limit of 10 behind one seat takes 11 of 50 and refuses 39, each with a hint."""
    limits = replace(SMALL, max_num_seqs=1)
    harness = Harness(limits, queue=QueueLimits(max_requests=10, max_tokens=10**6))
    received = [harness.submit(i, [3] * 10, 4) for i in range(50)]
    harness.read()
    refused = [r.failure for r in received if r.failure is not None]
    assert len(refused) == 39
    assert {f.code for f in refused} == {Code.RESOURCE_EXHAUSTED}
    assert all(f.retry_after_ms >= 100 for f in refused)
    assert "max_queued_requests is 10" in refused[0].message
    harness.run()
    assert sum(r.finished is not None for r in received) == 11
    assert harness.scheduler.state.totals.rejected == 39
    harness.assert_empty()


def test_the_queue_is_bounded_by_tokens() -> None:
    """Item 126: by tokens as well as by count; one prompt that is longer than the limit is let in alone."""
    harness = Harness(queue=QueueLimits(max_requests=10**6, max_tokens=100))
    first = harness.submit(0, [3] * 120, 4)
    second = harness.submit(1, [4] * 60, 4)
    harness.read()
    assert first.failure is None
    assert second.failure is not None
    assert second.failure.code == Code.RESOURCE_EXHAUSTED
    assert "max_queued_tokens = 100" in second.failure.message
    harness.run()
    assert first.finished is not None


def test_accepted_requests_are_let_in_beyond_the_bounds() -> None:
    """Replay and preemption never end in a full queue: those requests were accepted once."""
    harness = Harness(queue=QueueLimits(max_requests=0, max_tokens=10**6))
    accepted = [harness.submit(i, [3 + i] * 10, 12) for i in range(8)]
    harness.turn()
    harness.turn()
    harness.kill_worker()
    harness.start_worker()
    resumed = harness.submit(50, [77] * 10, 12, priors={0: array("I", [5])})
    resumed.ids = [5]
    harness.run()
    assert all(r.finished is not None for r in accepted)
    assert resumed.finished is not None


def test_the_hint_follows_the_rate() -> None:
    """A queue that drains fast sends clients back soon, a slow one late."""
    hints = []
    for output in (1, 60):
        limits = replace(SMALL, max_num_seqs=1)
        harness = Harness(limits, queue=QueueLimits(max_requests=4, max_tokens=10**6))
        for i in range(5):
            harness.submit(i, [3] * 4, output)
        while harness.scheduler.state.totals.finished < 3:
            harness.turn()
        for i in range(10, 20):
            received = harness.submit(i, [3] * 4, output)
        harness.read()
        assert received.failure is not None
        hints.append(received.failure.retry_after_ms)
    assert hints[1] > 5 * hints[0]


@pytest.mark.parametrize("queued", [10, 10_000])
def test_a_step_examines_no_more_of_a_long_queue(queued: int) -> None:
    """10,000 queued cost no more per step than 10: counted in sort keys and candidates, not in time."""
    harness = Harness(check_every_step=False)
    for i in range(8):
        harness.submit(i, [3] * 10, 200)
    harness.turn()
    for i in range(queued):
        harness.submit(100 + i, [3] * 10, 2, deadline_s=1e6 + i)
    touched = count_touches(harness)
    for _ in range(20):
        harness.turn()
    assert touched[0] <= 20


def test_a_step_behind_a_full_pool_examines_few() -> None:
    """The same where seats are free and memory is short: at most 32 candidates, and none while nothing
    changes.
    """
    limits = replace(SMALL, max_model_len=512, num_blocks=20)
    harness = Harness(limits, check_every_step=False)
    harness.submit(0, [3] * 100, 200)
    for _ in range(3):
        harness.turn()
    for i in range(1000):
        harness.submit(100 + i, [4] * 290, 2)
    touched = count_touches(harness)
    for _ in range(20):
        harness.turn()
    assert harness.scheduler.load().running == 1
    assert touched[0] <= 40


def count_touches(harness: Harness) -> list[int]:
    """Counts from here on how often the queue gives a sequence out."""
    waiting = harness.scheduler.state.waiting
    touched = [0]
    pop = waiting.pop

    def counting() -> object:
        touched[0] += 1
        return pop()

    waiting.pop = counting  # type: ignore[method-assign, assignment]
    return touched


def test_a_long_queue_costs_no_time_per_step() -> None:
    """The same by the clock, generously: the best of several rounds, CPU time of this thread alone."""

    def best_step_us(queued: int) -> float:
        harness = Harness(check_every_step=False)
        for i in range(8):
            harness.submit(i, [3] * 10, 240)
        harness.turn()
        for i in range(queued):
            harness.submit(100 + i, [3] * 10, 2, deadline_s=1e6 + i)
        times = []
        for _ in range(60):
            start = time.thread_time_ns()
            plan = harness.scheduler.plan(harness.seats, harness.now)
            times.append(time.thread_time_ns() - start)
            if plan is not None:
                harness.results.append(harness.worker.step(plan))
            harness.scheduler.apply(harness.seats, harness.results.popleft(), harness.now)
            harness.read()
        return min(times) / 1000

    few, many = best_step_us(10), best_step_us(10_000)
    assert many < 2 * few + 50
