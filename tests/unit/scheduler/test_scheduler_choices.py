"""Several choices of one request: siblings with a seat each, one prompt, ends of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hundredfold_scheduler.core.failures import Code
from hundredfold_scheduler.core.intake import QueueLimits
from hundredfold_scheduler.core.observer import Observer
from hundredfold_scheduler.core.request import Request, Status
from hundredfold_scheduler.core.step import EndReason
from support.fake_worker import EOS, Script, expected_output
from support.scheduler_harness import SMALL, Harness

PROMPT = [3 + i % 90 for i in range(40)]


def wanted(max_tokens: int, choice: int, script: Script = Script()) -> list[int]:  # noqa: B008  # frozen
    return expected_output(PROMPT, max_tokens, script, SMALL.vocab_size, choice)


def test_every_choice_is_its_own_and_the_prompt_is_computed_once() -> None:
    """Report 105: siblings wait until the first has computed the prompt, then share its full blocks."""
    harness = Harness()
    received = harness.submit(0, PROMPT, 12, n=4)
    harness.run()
    assert [choice.ids for choice in received.choices] == [wanted(12, i) for i in range(4)]
    assert len({tuple(choice.ids) for choice in received.choices}) == 4
    accounts = [choice.finished.account for choice in received.choices if choice.finished is not None]
    assert [account.cached_tokens for account in accounts] == [0, 32, 32, 32]
    computed = harness.scheduler.state.totals.computed_tokens
    # Once the prompt, three times what follows its full blocks, and the answers but for their last tokens.
    assert computed <= 40 + 3 * 8 + 4 * 11 + harness.plans_in_flight * 4
    assert harness.scheduler.state.totals.prompt_tokens == 40
    harness.assert_empty()


def test_siblings_are_admitted_one_by_one() -> None:
    """Four choices on two seats: nobody waits for all of them to have one."""
    harness = Harness(replace(SMALL, max_num_seqs=2))
    received = harness.submit(0, PROMPT, 8, n=4)
    other = harness.submit(1, [7] * 10, 8)
    harness.run()
    assert [choice.ids for choice in received.choices] == [wanted(8, i) for i in range(4)]
    assert other.ids == expected_output([7] * 10, 8, Script(), SMALL.vocab_size)
    harness.assert_empty()


def test_a_stop_string_ends_one_choice() -> None:
    harness = Harness()
    received = harness.submit(0, PROMPT, 20, n=3)
    while len(received.choices[1].ids) < 4:
        harness.turn()
    harness.scheduler.finish(harness.replica, 0, 1, 3, harness.now)
    harness.read()
    assert received.choices[1].finished is not None
    assert received.choices[1].finished.reason is EndReason.STOP
    harness.run()
    for index in (0, 2):
        assert received.choices[index].ids == wanted(20, index)
    harness.scheduler.finish(harness.replica, 0, 7, 3, harness.now)  # no such choice, no such request
    harness.assert_empty()


def test_a_first_choice_that_ends_at_once_lets_the_others_go() -> None:
    harness = Harness()
    received = harness.submit(0, PROMPT, 5, Script(stop_at=1), n=3)
    scored = harness.submit(1, PROMPT, 0, n=2)
    harness.run()
    assert [choice.ids for choice in received.choices] == [[EOS]] * 3
    assert [choice.ids for choice in scored.choices] == [[], []]
    assert scored.ended
    harness.assert_empty()


@pytest.mark.parametrize("turns", range(1, 14, 2))
def test_a_cancel_ends_all(turns: int) -> None:
    harness = Harness()
    harness.submit(0, PROMPT, 40, n=5)
    for _ in range(turns):
        harness.turn()
    harness.cancel(0)
    harness.run()
    harness.assert_empty()
    assert harness.scheduler.state.num_held == 0


def test_a_choice_that_fails_ends_the_request() -> None:
    harness = Harness()
    received = harness.submit(0, PROMPT, 20, Script(fail_at=3), n=3)
    harness.run()
    assert received.failure is not None
    assert received.failure.code == Code.INTERNAL
    harness.assert_empty()


@pytest.mark.parametrize("turns", [2, 4, 8, 12])
def test_a_dead_worker_changes_no_choice(turns: int) -> None:
    """Choices that ran are replayed behind the first of them, each goes on where it was."""
    harness = Harness()
    received = harness.submit(0, PROMPT, 16, n=4)
    for _ in range(turns):
        harness.turn()
    harness.kill_worker()
    assert harness.scheduler.load().waiting == 4
    sequences = next(iter(harness.scheduler.state.requests.values())).sequences.values()
    assert sum(sequence.status is Status.WAITING for sequence in sequences) == 1
    harness.start_worker()
    harness.run()
    assert [choice.ids for choice in received.choices] == [wanted(16, i) for i in range(4)]
    harness.assert_empty()


def test_the_prompt_is_computed_once_again_though_its_first_choice_stood_last() -> None:
    """Preempted and seated anew, the first choice runs behind the others when the worker dies."""
    harness = Harness()
    received = harness.submit(0, PROMPT, 60, n=4)
    while len(received.choices[3].ids) < 4:
        harness.turn()
    lead = harness.scheduler.state.requests["request-0"].lead
    running = harness.seats.running
    running[lead.number] = running.pop(lead.number)
    harness.kill_worker()
    sequences = harness.scheduler.state.requests["request-0"].sequences.values()
    assert [sequence for sequence in sequences if sequence.status is Status.WAITING] == [lead]
    harness.start_worker()
    harness.run()
    assert [choice.ids for choice in received.choices] == [wanted(60, i) for i in range(4)]
    harness.assert_empty()


def test_a_new_scheduler_is_told_of_each_choice() -> None:
    harness = Harness()
    received = harness.submit(0, PROMPT, 12, n=3)
    while len(received.choices[2].ids) < 4:
        harness.turn()
    harness.scheduler.finish(harness.replica, 0, 0, len(received.ids), harness.now)
    harness.read()
    harness.restart_scheduler([0])
    harness.run()
    for index in (1, 2):
        assert received.choices[index].ids == wanted(12, index)
    assert received.ended
    harness.assert_empty()


def test_the_queue_counts_seats() -> None:
    """A request of many choices is as many as it makes. One of more than there could ever be room for is
    not asked to come back later.
    """
    harness = Harness(replace(SMALL, max_num_seqs=2), queue=QueueLimits(6, 10_000))
    never = harness.submit(0, PROMPT, 4, n=9)
    harness.read()
    assert never.failure is not None
    assert never.failure.code == Code.INVALID_ARGUMENT
    assert never.failure.field == "sampling.n"
    assert "9 sequences" in never.failure.message
    taken = harness.submit(1, PROMPT, 4, n=7)
    late = harness.submit(2, PROMPT, 4, n=2)
    harness.read()
    assert late.failure is not None
    assert late.failure.code == Code.RESOURCE_EXHAUSTED
    assert "2 sequences" in late.failure.message
    assert harness.scheduler.load().waiting == 7
    harness.run()
    assert taken.ended
    harness.assert_empty()


def test_the_first_token_is_told_of_once() -> None:
    """The first choice ends while the others wait for a seat; when the worker dies, one of them leads."""

    class FirstTokens(Observer):
        count = 0

        def first_token(self, request: Request, now: float) -> None:
            self.count += 1

    watch = FirstTokens()
    harness = Harness(replace(SMALL, max_num_seqs=1), observer=watch)
    received = harness.submit(0, PROMPT, 30, n=3)
    while not received.choices[0].finished:
        harness.turn()
    while harness.seats.running.keys() <= {1}:
        assert harness.plan_ahead()
    harness.kill_worker()
    harness.start_worker()
    harness.run()
    assert received.ended
    assert watch.count == 1


def test_preempted_choices_come_back_alone() -> None:
    harness = Harness(replace(SMALL, num_blocks=9, max_num_seqs=4))
    received = harness.submit(0, PROMPT, 60, n=4)
    harness.run()
    assert [choice.ids for choice in received.choices] == [wanted(60, i) for i in range(4)]
    assert harness.scheduler.state.totals.preemptions > 0
    harness.assert_empty()
