"""Whose turn it is: classes, ageing, tenants by tokens served, and what that costs."""

from __future__ import annotations

import random
import time
from array import array

import pytest

from hundredfold_scheduler.core.ledger import Ledger
from hundredfold_scheduler.core.policy import FirstComeFirstServed, StrictPriority
from hundredfold_scheduler.core.request import Attachment, Request, Sequence, Submission
from hundredfold_scheduler.core.waiting import WaitingQueue


class Queue:
    """A waiting queue with short ways in and out. Time is set by hand."""

    def __init__(self, order: StrictPriority | FirstComeFirstServed | None = None) -> None:
        self.waiting = WaitingQueue(order or StrictPriority(ageing_s=60.0))
        self.attachment = Attachment("replica", lambda: None)
        self.number = 0

    def push(self, tenant: str = "", length: int = 10, priority: int = 0, now: float = 0.0) -> Sequence:
        self.number += 1
        prompt = array("I", [5] * length)
        name = f"r{self.number}"
        submission = Submission(self.number, name, prompt, 8, None, priority=priority, tenant=tenant)
        sequence = Request(submission, self.attachment, self.number, now).lead
        self.waiting.push(sequence)
        return sequence

    def seat(self, now: float = 0.0) -> Sequence | None:
        """The next one gets its seat."""
        self.waiting.age(now)
        sequence = self.waiting.pop()
        if sequence is not None:
            self.waiting.seat(sequence, sequence.total)
        return sequence

    def tenants(self, count: int) -> str:
        """Tenants of the next so many seats, one letter each."""
        return "".join(_tenant(self.seat()) for _ in range(count))


def _tenant(sequence: Sequence | None) -> str:
    assert sequence is not None
    return sequence.request.submission.tenant


def serve(sequence: Sequence, tokens: int) -> None:
    """Output tokens come in."""
    assert sequence.account is not None
    sequence.account.served += tokens


def test_tenants_take_turns_by_tokens() -> None:
    """One tenant's prompts are four times as long: the other gets four turns for one."""
    queue = Queue()
    for _ in range(20):
        queue.push("a", 40)
    for _ in range(20):
        queue.push("b", 10)
    assert queue.tenants(15) == "abbbbabbbbabbbb"


def test_output_counts_as_prompt_does() -> None:
    queue = Queue()
    for tenant in "aabb":
        queue.push(tenant)
    first = queue.seat()
    assert first is not None
    serve(first, 1000)
    assert queue.tenants(3) == "bba"


def test_one_tenants_requests_keep_their_order() -> None:
    """FIFO inside a class, whatever their lengths."""
    queue = Queue()
    pushed = [queue.push("a", random.Random(i).randrange(1, 90), now=float(i)) for i in range(30)]
    assert [queue.seat() for _ in pushed] == pushed


def test_no_turns_are_saved_by_being_idle() -> None:
    """A tenant that was away while others were served 10,000 tokens starts level with them: it neither takes
    all turns until it has caught up, nor waits for any.
    """
    queue = Queue()
    for _ in range(200):
        queue.push("a", 100)
    assert queue.tenants(100) == "a" * 100
    for _ in range(10):
        queue.push("b", 100)
    turns = queue.tenants(20)
    assert turns.count("b") == 10
    assert "bbb" not in turns
    assert turns[:2].count("b") == 1


def test_a_new_tenant_is_not_held_to_account_for_the_time_before() -> None:
    """Alone, ``a`` was served 10,000 tokens without anybody waiting. Then both come at once."""
    queue = Queue()
    alone = queue.push("a", 10)
    queue.seat()
    serve(alone, 10_000)
    for _ in range(6):
        queue.push("b", 10)
        queue.push("a", 10)
    assert sorted(queue.tenants(6)) == list("aaabbb")


def test_strangers_with_a_new_name_each_time_do_not_starve_anybody() -> None:
    """Hostile: a name per request. Each starts level with the least served, behind who came earlier."""
    queue = Queue()
    for _ in range(10):
        queue.push("a", 100, now=0.0)
    seats = []
    for i in range(40):
        queue.push(f"stranger{i}", 100, now=1.0 + i)
        seats.append(_tenant(queue.seat()))
    assert seats.count("a") >= 5


def test_a_candidate_that_is_looked_at_counts_as_served() -> None:
    """A line of a hundred that does not fit does not hide the other tenant from a look at four."""
    queue = Queue()
    for _ in range(100):
        queue.push("a", 50)
    queue.push("b", 50, now=1.0)
    looked_at = [queue.waiting.pop() for _ in range(4)]
    assert "b" in [_tenant(sequence) for sequence in looked_at]
    for sequence in looked_at:
        assert sequence is not None
        queue.waiting.restore(sequence)
    assert queue.tenants(3) in ("aba", "abb")


def test_a_line_that_is_set_aside_gives_out_no_more() -> None:
    queue = Queue()
    first, _, third = queue.push("a"), queue.push("a"), queue.push("b", priority=-1)
    assert queue.waiting.pop() is first
    queue.waiting.set_aside(first)
    assert queue.waiting.pop() is third
    assert queue.waiting.pop() is None
    queue.waiting.restore(third)
    queue.waiting.restore(first)
    assert queue.seat() is first


def test_preempted_ones_go_first_in_their_class() -> None:
    queue = Queue()
    fresh, high = queue.push("a"), queue.push("b", priority=1)
    begun = queue.push("c", now=5.0)
    queue.waiting.remove(begun)
    begun.started = True
    queue.waiting.push(begun)
    assert [queue.seat() for _ in range(3)] == [high, begun, fresh]


def test_first_come_first_served_knows_no_tenants() -> None:
    queue = Queue(FirstComeFirstServed(60.0))
    for i, tenant in enumerate("aaabbb"):
        queue.push(tenant, now=float(i))
    assert queue.tenants(6) == "aaabbb"


def test_priorities_beyond_the_range_count_as_its_ends() -> None:
    queue = Queue()
    low, high = queue.push(priority=-(10**9)), queue.push(priority=10**9)
    assert [queue.seat(), queue.seat()] == [high, low]
    assert (high.level, low.level) == (100, -100)


@pytest.mark.parametrize(("waited", "raised"), [(59.0, 0), (60.0, 1), (179.0, 2), (180.0, 3), (10_000.0, 3)])
def test_waiting_raises_a_class_at_a_time_up_to_the_highest_that_waits(waited: float, raised: int) -> None:
    queue = Queue()
    low = queue.push("low", now=0.0)
    for _ in range(2):
        queue.push("high", priority=3, now=0.0)
    queue.seat(now=0.0)
    queue.waiting.age(waited)
    order = [queue.seat(now=waited), queue.seat(now=waited)]
    assert low in order
    assert low.level == raised


def test_nobody_is_raised_where_ageing_is_off() -> None:
    queue = Queue(StrictPriority(ageing_s=0.0))
    low = queue.push("low", now=0.0)
    for i in range(50):
        queue.push("high", priority=1, now=1000.0 * i)
        assert queue.seat(now=1000.0 * i) is not low


def test_a_raised_flood_takes_turns_and_no_more() -> None:
    """A thousand old requests of the low class have come level with the high one: one of two turns is
    theirs.
    """
    queue = Queue()
    for _ in range(1000):
        queue.push("", 10, now=0.0)
    high = []
    for step in range(40):
        now = 1000.0 + step
        queue.push("", 10, priority=5, now=now)
        queue.push("", 10, priority=5, now=now)
        sequence = queue.seat(now)
        assert sequence is not None
        high.append(sequence.request.submission.priority == 5)
    assert sum(high[10:]) >= 14
    assert not all(high[10:])


def test_ended_requests_leave_no_accounts_behind() -> None:
    """Names are anybody's: six thousand of them leave no more than a few thousand accounts."""
    queue = Queue()
    for i in range(6000):
        sequence = queue.push(f"tenant{i}")
        if i % 2:
            assert queue.seat() is not None
            queue.waiting.leave(sequence)
        else:
            queue.waiting.remove(sequence)
    assert len(queue.waiting) == 0
    assert queue.waiting.items() == []
    assert len(queue.waiting._ledger) <= 4096
    assert len(queue.waiting._lanes) == 0


def test_the_account_idle_longest_is_forgotten() -> None:
    ledger = Ledger(max_idle=2)
    accounts = [ledger.open(0, name, 0) for name in "abc"]
    for account in accounts:
        account.served = 7
        ledger.close(account)
    assert len(ledger) == 2
    assert ledger.open(0, "a", 0).served == 0
    assert ledger.open(0, "c", 0).served == 7


def test_any_use_keeps_the_accounts() -> None:
    """Random pushes, looks, seats, removals and ends: counts agree, nothing is lost or given out twice."""
    rng = random.Random(11)
    queue = Queue(StrictPriority(ageing_s=3.0))
    waiting: set[Sequence] = set()
    seated: set[Sequence] = set()
    for step in range(4000):
        now = step * 0.1
        action = rng.random()
        if action < 0.4:
            waiting.add(queue.push(rng.choice("abcdef"), rng.randrange(1, 99), rng.choice([0, 0, 1, 7]), now))
        elif action < 0.5 and waiting:
            gone = rng.choice(sorted(waiting, key=lambda s: s.number))
            queue.waiting.remove(gone)
            queue.waiting.leave(gone)
            waiting.remove(gone)
        elif action < 0.6 and seated:
            ended = seated.pop()
            if rng.random() < 0.3:
                ended.started = True
                queue.waiting.push(ended)
                waiting.add(ended)
            else:
                queue.waiting.leave(ended)
        else:
            queue.waiting.age(now)
            looked = [s for s in (queue.waiting.pop() for _ in range(rng.randrange(5))) if s is not None]
            assert len(set(looked)) == len(looked)
            assert waiting.issuperset(looked)
            for sequence in looked:
                if rng.random() < 0.5:
                    queue.waiting.restore(sequence)
                else:
                    queue.waiting.seat(sequence, sequence.total)
                    waiting.remove(sequence)
                    seated.add(sequence)
        assert len(queue.waiting) == len(waiting)
        assert queue.waiting.num_tokens == sum(s.total for s in waiting)
    assert set(queue.waiting.items()) == waiting
    held = sum(account.holders for account in queue.waiting._ledger._accounts.values())
    lanes = sum(lane.account is not None for lane in queue.waiting._lanes.values())
    assert held == lanes + sum(s.account is not None for s in waiting | seated)


def test_a_look_costs_the_same_at_ten_thousand_of_a_thousand_tenants() -> None:
    """By the clock, generously: 10,000 queued over 1,000 tenants against 10 queued over 10."""

    def best_us(queued: int, tenants: int) -> float:
        queue = Queue()
        for i in range(queued):
            queue.push(f"tenant{i % tenants}", now=i * 1e-3)
        times = []
        for step in range(300):
            start = time.thread_time_ns()
            queue.waiting.age(100.0 + step)
            sequence = queue.waiting.pop()
            assert sequence is not None
            queue.waiting.seat(sequence, 10)
            times.append(time.thread_time_ns() - start)
            queue.waiting.leave(sequence)
            queue.push(f"tenant{step % tenants}", now=100.0 + step)
        return sorted(times)[len(times) // 2] / 1000

    few, many = best_us(10, 10), best_us(10_000, 1000)
    assert many < 4 * few + 200
