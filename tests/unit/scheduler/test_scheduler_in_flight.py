"""The in-flight rules: what a pending result still means after a cancel, an end or a preemption.

Blocks and slots are reused in the very next plan; the fake worker raises if that is ever too early (item 25).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from hundredfold_scheduler.core.failures import Code
from hundredfold_scheduler.core.step import EndReason
from support.fake_worker import EOS, Script, expected_output
from support.scheduler_harness import SMALL, Harness


def slots_in(plan: object) -> list[int]:
    return list(plan.slots)  # type: ignore[attr-defined]


def test_a_row_that_ended_is_computed_once_more_and_discarded() -> None:
    harness = Harness()
    received = harness.submit(0, [3] * 10, 20, Script(stop_at=3))
    harness.run()
    assert received.ids == expected_output([3] * 10, 20, Script(stop_at=3), 1000)
    assert received.finished is not None
    assert (received.finished.reason, received.finished.stop_token_id) == (EndReason.STOP, EOS)
    assert [len(plan.slots) for plan in harness.plans] == [1, 1, 1, 1, 0]
    assert harness.plans[-1].released_slots == [harness.plans[0].new_sequences[0].slot]


def test_a_cancelled_sequence_is_in_no_later_plan() -> None:
    harness = Harness()
    harness.submit(0, [3] * 10, 50)
    kept = harness.submit(1, [4] * 10, 12)
    for _ in range(4):
        harness.turn()
    slot = harness.plans[0].new_sequences[0].slot
    made = len(harness.plans)
    harness.cancel(0)
    assert harness.scheduler.load().running == 1
    harness.run()
    assert all(slot not in slots_in(plan) for plan in harness.plans[made:])
    assert slot in harness.plans[made].released_slots
    assert kept.finished is not None
    harness.assert_empty()


@pytest.mark.parametrize("plans_in_flight", [1, 2])
def test_slot_and_blocks_are_reused_in_the_next_plan(plans_in_flight: int) -> None:
    """One seat, a pool for one: the next request starts in the plan that releases the one before."""
    harness = Harness(replace(SMALL, max_num_seqs=1, num_blocks=4, max_model_len=64), plans_in_flight)
    received = [harness.submit(i, [3 + i] * 30, 20) for i in range(5)]
    harness.run()
    for i in range(5):
        assert received[i].ids == expected_output([3 + i] * 30, 20, Script(), 1000)
    handovers = [plan for plan in harness.plans if plan.released_slots and plan.new_sequences]
    assert len(handovers) == 4


def test_a_victims_pending_result_counts_and_its_return_waits_for_it() -> None:
    harness = Harness(replace(SMALL, num_blocks=6, max_num_seqs=2))
    received = [harness.submit(i, [3 + i] * 20, 70) for i in range(2)]
    parked = 0
    while harness.plan_ahead() or harness.results:
        for sequence in harness.seats.parked.values():
            parked += 1
            assert sequence.last_step == harness.results[0].step
            assert sequence.blocks == []
            assert sequence.slot == -1
        harness.take_result()
    assert parked
    assert harness.scheduler.state.totals.preemptions >= 1
    for i in range(2):
        assert received[i].ids == expected_output([3 + i] * 20, 70, Script(), 1000)
    harness.assert_empty()


def test_a_victim_can_end_by_its_pending_result() -> None:
    """Its last token was in flight when it was preempted: it ends, and is not computed again."""
    ended = 0
    for stop_at in range(1, 60):
        harness = Harness(replace(SMALL, num_blocks=6, max_num_seqs=2))
        received = [harness.submit(0, [3] * 20, 70), harness.submit(1, [4] * 20, 70, Script(stop_at=stop_at))]
        while harness.plan_ahead() or harness.results:
            ended += any(s.num_output == stop_at - 1 for s in harness.seats.parked.values())
            harness.take_result()
        assert received[1].ids == expected_output([4] * 20, 70, Script(stop_at=stop_at), 1000)
        harness.assert_empty()
    assert ended


def test_cancel_in_every_state() -> None:
    """Item 17: queued, prefilling, decoding, parked, and while no worker is there."""
    harness = Harness(replace(SMALL, num_blocks=8, max_num_seqs=2, max_num_batched_tokens=16))

    def in_state(place: str) -> None:
        for i in range(3):
            harness.submit(i, [3 + i] * 40, 60)
        for _ in range(400):
            state = harness.scheduler.state
            places = {
                "queued": [s.stream_id for s in state.waiting.items()],
                "prefilling": [
                    s.stream_id for s in harness.seats.running.values() if s.computed < s.prompt_len
                ],
                "decoding": [s.stream_id for s in harness.seats.running.values() if s.num_output > 2],
                "parked": [s.stream_id for s in harness.seats.parked.values()],
            }
            if places[place]:
                harness.cancel(places[place][0])
                break
            assert harness.take_result() or harness.plan_ahead()
            harness.plan_ahead()
        else:
            raise AssertionError(f"nothing was ever {place}")
        for i in range(3):
            harness.cancel(i)
        harness.run()
        harness.assert_empty()
        harness.received.clear()

    for place in ("queued", "prefilling", "decoding", "parked"):
        in_state(place)
    harness.kill_worker()
    harness.submit(9, [3] * 10)
    harness.cancel(9)
    harness.start_worker()
    harness.run()
    harness.assert_empty()


def test_a_burst_of_cancels_leaves_nothing() -> None:
    """Item 22: unknown, ended and repeated ids among a thousand; the next request is served at once."""
    harness = Harness()
    for i in range(100):
        harness.submit(i, [3 + i] * 10, 4 if i % 2 else 50)
    for _ in range(5):
        harness.turn()
    for i in range(1000):
        harness.cancel(i % 130)
    harness.run()
    harness.assert_empty()
    after = harness.submit(1000, [9] * 10, 4)
    harness.turn()
    harness.turn()
    assert after.ids
    harness.run()
    harness.assert_empty()


@pytest.mark.parametrize("kept", [0, 3, 6])
def test_a_stop_string_ends_the_choice_and_drops_the_rest(kept: int) -> None:
    """The tokenizer's Finish: the reply is the account, ids beyond what counts are not delivered any more."""
    harness = Harness()
    received = harness.submit(0, [3] * 10, 50)
    while len(received.ids) < 6:
        harness.turn()
    harness.scheduler.apply(harness.seats, harness.results.popleft(), harness.now)
    assert harness.replica.outbox
    harness.scheduler.finish(harness.replica, 0, 0, kept, harness.now)
    harness.read()
    assert len(received.ids) == 6
    assert received.finished is not None
    assert received.finished.reason is EndReason.STOP
    assert received.finished.stop_token_id is None
    harness.scheduler.finish(harness.replica, 0, 0, kept, harness.now)
    harness.scheduler.finish(harness.replica, 77, 0, 0, harness.now)
    harness.run()
    harness.assert_empty()


def test_duplicate_ids() -> None:
    """Item 27: ALREADY_EXISTS for the second; the first goes on, and cancelling one does not touch the
    other.
    """
    harness = Harness()
    first = harness.submit(0, [3] * 10, 10)
    second = harness.submit(1, [4] * 10, 10, request_id="request-0")
    harness.read()
    assert second.failure is not None
    assert second.failure.code == Code.ALREADY_EXISTS
    harness.cancel(1)
    harness.run()
    assert first.finished is not None
    again = harness.submit(2, [5] * 10, 4, request_id="request-0")
    harness.run()
    assert again.finished is not None
    harness.submit(7, [3] * 10)
    with pytest.raises(ValueError, match="stream_id 7 is in use"):
        harness.submit(7, [3] * 10)


def test_a_superseded_stream_has_no_last_word() -> None:
    """What its reader had still in hand when the newer stream came is not taken: nobody would be told of its
    end.
    """
    harness = Harness()
    harness.submit(0, [3] * 10)
    old = harness.replica
    harness.replica = harness.scheduler.attach("replica", lambda: None, harness.now)
    assert not harness.scheduler.state.requests
    newer, harness.replica = harness.replica, old
    harness.submit(1, [4] * 10)
    assert not harness.scheduler.state.requests
    harness.scheduler.detach(old, harness.now)
    harness.replica = newer
    received = harness.submit(2, [5] * 10)
    harness.run()
    assert received.finished is not None
    harness.assert_empty()


def test_a_failing_row_ends_alone() -> None:
    """Non-finite logits end one request; its neighbours' ids are what they were."""
    harness = Harness()
    failing = harness.submit(0, [3] * 40, 20, Script(fail_at=5))
    others = [harness.submit(i, [3 + i] * 40, 20) for i in range(1, 6)]
    harness.run()
    assert failing.failure is not None
    assert failing.failure.code == Code.INTERNAL
    assert len(failing.ids) == 4
    for i, received in enumerate(others, 1):
        assert received.ids == expected_output([3 + i] * 40, 20, Script(), 1000)
    harness.assert_empty()


def test_no_request_leaves_a_trace() -> None:
    """Item 23: after 3,000 one-token requests every map and list is as long as after 300."""
    harness = Harness(check_every_step=False)

    def sizes() -> list[int]:
        state = harness.scheduler.state
        return [
            len(state.requests),
            len(harness.seats.running),
            len(harness.seats.parked),
            len(harness.replica.requests),
            len(state.waiting._lanes),
            len(state.waiting._ticks._heap),
            len(state.waiting._ledger),
            len(state.deadlines._heap),
            len(harness.seats.in_flight),
            len(harness.seats.cache.index),
            len(harness.seats.slots.free_slots()),
        ]

    def serve(first: int, count: int) -> list[int]:
        for i in range(first, first + count):
            harness.submit(i, [3 + i % 900] * 20, 1, deadline_s=1e6)
            harness.turn()
        harness.run()
        return sizes()

    after_300 = serve(0, 300)
    assert serve(300, 2700) == after_300
    harness.assert_empty()
