"""Several workers behind one queue: who is seated where, what a drain, a silence and a death change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hundredfold_scheduler.core.admission import MAX_WEIGHED, PATIENCE_S
from hundredfold_scheduler.core.cache import Cache
from hundredfold_scheduler.core.failures import Code
from hundredfold_scheduler.core.intake import QueueLimits
from hundredfold_scheduler.core.request import Sequence
from hundredfold_scheduler.core.routing import EVEN_SEATS, EVEN_SHARE
from support.fake_worker import Script, expected_output
from support.scheduler_harness import SMALL, Received
from support.scheduler_house import House

ROOMY = replace(SMALL, num_blocks=512, max_num_seqs=32, max_num_batched_tokens=128)
STEM = [3 + i * 7 % 900 for i in range(96)]


def prompt(seed: int, length: int = 30) -> list[int]:
    return [3 + (seed * 7919 + i * 31) % 990 for i in range(length)]


def assert_right(received: Received, ids: list[int], max_tokens: int) -> None:
    assert received.finished is not None
    assert received.ids == expected_output(ids, max_tokens, Script(), SMALL.vocab_size)


def test_requests_without_a_common_prefix_are_spread_evenly() -> None:
    house = House(fleet=dict.fromkeys("abc", ROOMY))
    for i in range(30):
        house.submit(i, prompt(i), 100)
    for _ in range(6):
        house.turn()
    counts = [len(rig.seats.running) for rig in house.rigs.values()]
    assert sum(counts) == 30
    assert max(counts) <= EVEN_SHARE * min(counts) + EVEN_SEATS
    house.run()
    house.assert_empty()


def test_a_prefix_is_looked_for_where_it_is_cached() -> None:
    """Four conversations, three turns each, one after the other: each stays where it began."""
    house = House(fleet=dict.fromkeys("abcd", ROOMY))
    for chat in range(4):
        house.submit(chat, prompt(chat, 64), 40)
    house.turn()
    first = {chat: house.homes(chat) for chat in range(4)}
    house.run()
    assert sorted(first.values()) == [["a"], ["b"], ["c"], ["d"]]
    for turn in (1, 2):
        for chat in range(4):
            house.submit(10 * turn + chat, prompt(chat, 64) + prompt(chat + 50 * turn, 20), 10)
            house.run()
            assert house.homes(10 * turn + chat) == first[chat]
    assert house.scheduler.state.totals.cached_tokens == 8 * 64
    house.assert_empty()


def test_a_popular_prefix_spreads_before_it_piles_up() -> None:
    """All share a prefix that one worker holds: it gets a few more than the other, never all of them."""
    house = House(fleet=dict.fromkeys("ab", ROOMY))
    house.submit(0, STEM, 1)
    house.run()
    (home,) = house.homes(0)
    for i in range(1, 25):
        house.submit(i, STEM + prompt(i, 5), 150)
    apart = 0
    for _ in range(12):
        house.turn()
        counts = {name: len(rig.seats.running) for name, rig in house.rigs.items()}
        away = sum(counts.values()) - counts[home]
        apart = max(apart, counts[home] - away)
        assert counts[home] <= EVEN_SHARE * away + EVEN_SEATS + 1
    assert apart >= 2  # it was preferred,
    assert sum(counts.values()) == 24  # nobody waited for it,
    assert min(counts.values()) >= 8  # and the other took its part
    house.run()
    house.assert_empty()


def test_a_long_prompt_in_the_way_sends_newcomers_elsewhere() -> None:
    """Seats are as free here as there, but here 250 tokens are computed first."""
    limits = replace(ROOMY, max_num_batched_tokens=32, max_num_seqs=8, max_model_len=1024)
    house = House(fleet={"a": limits, "b": limits})
    house.submit(0, prompt(0, 250), 5)
    house.turn()
    (busy,) = house.homes(0)
    house.submit(1, prompt(1, 20), 5)
    house.turn()
    assert house.homes(1) == [name for name in "ab" if name != busy]
    house.run()
    house.assert_empty()


@pytest.mark.parametrize("trouble", ["leaving", "silent", "late"])
def test_a_worker_in_trouble_gets_nothing_new(trouble: str) -> None:
    """It has the prefix and free seats, and still newcomers go to the other one; what runs there goes on."""
    house = House(fleet={"a": ROOMY, "b": ROOMY})
    house.submit(0, STEM, 60)
    while len(house.received[0].ids) < 3:
        house.turn()
    (home,) = house.homes(0)
    other = "b" if home == "a" else "a"
    worker = house.rigs[home].seats
    if trouble == "late":
        assert house.plan_for(home)
        house.now += PATIENCE_S + 1
    else:
        setattr(worker, trouble, True)
    house.submit(1, [*STEM, 5], 5)
    house.plan_for(home)
    house.plan_for(other)
    assert house.homes(1) == [other]
    house.run()
    assert house.homes(0) == [home]
    assert_right(house.received[0], STEM, 60)
    assert_right(house.received[1], [*STEM, 5], 5)


def test_only_workers_in_trouble_means_waiting() -> None:
    house = House(fleet={"a": ROOMY, "b": ROOMY})
    house.rigs["a"].seats.leaving = True
    house.rigs["b"].seats.silent = True
    house.submit(0, prompt(0), 5)
    assert house.run() == 0
    house.rigs["b"].seats.silent = False
    house.run()
    assert_right(house.received[0], prompt(0), 5)
    assert house.homes(0) == ["b"]


def test_the_end_of_a_worker_that_leaves_is_no_death() -> None:
    """Its last sequences are replayed on the other one, three times over, and nobody is suspected."""
    house = House(fleet={"a": ROOMY, "b": ROOMY})
    for i in range(6):
        house.submit(i, prompt(i), 150)
    for _ in range(4):
        for _ in range(6):
            house.turn()
        house.rigs["a"].seats.leaving = True
        house.turn()
        house.die("a")
        assert all(r.lead.deaths == 0 for r in house.scheduler.state.requests.values())
        house.join("a", ROOMY)
    totals = house.scheduler.state.totals
    assert totals.replays >= 4
    assert totals.worker_losses == 0
    house.run()
    for i in range(6):
        assert_right(house.received[i], prompt(i), 150)
    house.assert_empty()


def test_a_poisonous_request_is_told_from_its_neighbours_across_workers() -> None:
    """It kills whichever worker it is seated on. Two deaths: it runs alone, on a worker that others leave to
    it while they go on elsewhere; three: it ends INTERNAL, everybody else well.
    """
    house = House(fleet=dict.fromkeys("abc", ROOMY))
    poison = 3
    for i in range(9):
        house.submit(i, prompt(i), 60)
    died: list[str] = []
    for _ in range(150):
        house.turn()
        for name, rig in list(house.rigs.items()):
            request = house.scheduler.state.requests.get(f"request-{poison}")
            if request is not None and request.lead.worker is rig.seats and request.lead.total > 30:
                if len(died) == 2:
                    assert list(rig.seats.running.values()) == [request.lead]
                    assert sum(len(r.seats.running) for r in house.rigs.values()) > 1
                died.append(name)
                house.die(name)
                house.join(name, ROOMY)
    house.run()
    assert len(died) == 3
    for i in range(9):
        failure = house.received[i].failure
        if i == poison:
            assert failure is not None
            assert failure.code == Code.INTERNAL
        else:
            assert_right(house.received[i], prompt(i), 60)
    house.assert_empty()


def test_a_poisonous_request_takes_all_its_choices_along() -> None:
    """Three choices of one request run when a third worker dies of it: one end for all of them."""
    house = House(fleet=dict.fromkeys("ab", ROOMY))
    poison = house.submit(0, prompt(0), 60, n=3)
    well = house.submit(1, prompt(1), 60)
    deaths = 0
    for _ in range(200):
        house.turn()
        request = house.scheduler.state.requests.get("request-0")
        if request is None:
            continue
        at = {s.worker.name for s in request.sequences.values() if s.worker is not None and s.total > 35}
        for name in at:
            deaths += 1
            house.die(name)
            house.join(name, ROOMY)
    house.run()
    assert deaths >= 3
    assert poison.failure is not None
    assert poison.failure.code == Code.INTERNAL
    assert_right(well, prompt(1), 60)
    house.assert_empty()


def test_a_request_goes_where_it_fits_and_is_refused_only_where_nobody_can() -> None:
    """Workers differ in context, blocks and block size."""
    wide = replace(ROOMY, max_model_len=400, block_size=32, num_blocks=64)
    house = House(fleet={"narrow": replace(ROOMY, max_model_len=64), "wide": wide})
    longest = house.submit(0, prompt(0, 200), 150)
    too_long = house.submit(1, prompt(1, 400), 5)
    short = [house.submit(i, prompt(i, 10), 20) for i in range(2, 12)]
    house.run()
    assert house.homes(0) == ["wide"]
    assert_right(longest, prompt(0, 200), 150)
    assert too_long.failure is not None
    assert too_long.failure.code == Code.INVALID_ARGUMENT
    assert "400" in too_long.failure.message
    for i, received in enumerate(short, 2):
        assert_right(received, prompt(i, 10), 20)
    assert {name for i in range(2, 12) for name in house.homes(i)} == {"narrow", "wide"}


def test_the_answer_is_as_long_on_whatever_worker() -> None:
    """An answer that only the wider context holds waits for a seat there, and is not cut short."""
    wide = replace(ROOMY, max_model_len=128, max_num_seqs=1)
    house = House(fleet={"narrow": replace(ROOMY, max_model_len=64), "wide": wide})
    received = [house.submit(i, prompt(i, 20), 1000) for i in range(3)]
    house.run()
    for i, one in enumerate(received):
        assert house.homes(i) == ["wide"]
        assert_right(one, prompt(i, 20), 108)


def test_who_waits_for_a_worker_that_is_away() -> None:
    """A worker that died is still hoped for; one that is not listed any more is not."""
    house = House(fleet={"narrow": replace(ROOMY, max_model_len=64), "wide": ROOMY})
    house.die("wide")
    waits = house.submit(0, prompt(0, 100), 20)
    house.run()
    assert not waits.ended
    house.join("wide", ROOMY)
    house.run()
    assert_right(waits, prompt(0, 100), 20)
    house.die("wide")
    waits = house.submit(1, prompt(1, 100), 20)
    house.scheduler.forget("wide", house.now)
    house.read()
    assert waits.failure is not None
    assert waits.failure.code == Code.INVALID_ARGUMENT
    house.assert_empty()


def test_another_workers_rows_do_not_fold_a_message() -> None:
    """Two workers' steps lie in one message as they came; a sequence that moves has one row all the same."""
    house = House(fleet={"a": ROOMY, "b": ROOMY}, plans_in_flight=1)
    for i in range(2):
        house.submit(i, prompt(i), 100)
    house.turn()
    assert house.homes(0) != house.homes(1)
    house.plan_ahead()
    for rig in house.rigs.values():
        while rig.results:
            house.scheduler.apply(rig.seats, rig.results.popleft(), house.now)
    assert len(house.replica.outbox.fresh.stream_ids) == 2
    (home,) = house.homes(0)
    house.die(home)
    house.plan_ahead()
    for rig in house.rigs.values():
        while rig.results:
            house.scheduler.apply(rig.seats, rig.results.popleft(), house.now)
    house.read()
    house.run()
    for i in range(2):
        assert_right(house.received[i], prompt(i), 100)


def test_what_was_accepted_once_is_never_refused_for_room() -> None:
    """After a restart of the scheduler a replica brings back what waited; others have filled the queue."""
    house = House(fleet={"a": replace(SMALL, max_num_seqs=1)}, queue=QueueLimits(3, 10_000))
    for i in range(4):
        house.submit(i, prompt(i), 20)
    refused = house.submit(4, prompt(4), 20)
    house.turn()
    assert refused.failure is not None
    assert house.scheduler.state.totals.requests == 4
    house.restart_scheduler(())
    for i in range(10, 14):
        house.submit(i, prompt(i), 20)
    refused = house.submit(14, prompt(14), 20)
    again = [house.submit(20 + i, prompt(i), 20, accepted=True) for i in range(4)]
    house.run()
    assert refused.failure is not None
    assert refused.failure.code == Code.RESOURCE_EXHAUSTED
    for i, received in enumerate(again):
        assert_right(received, prompt(i), 20)


@pytest.mark.parametrize("workers", [1, 3, 24])
def test_a_look_costs_no_more_with_more_workers(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """While more wait than there are seats, a plan asks about as many caches with 24 workers as with one."""
    limits = replace(SMALL, max_num_seqs=2)
    fleet = {f"worker-{number}": limits for number in range(workers)}
    house = House(fleet=fleet, check_every_step=False)
    for i in range(300):
        house.submit(i, prompt(i, 20), 10)
    asked = 0
    real = Cache.match

    def match(cache: Cache, sequence: Sequence) -> list[int]:
        nonlocal asked
        asked += 1
        return real(cache, sequence)

    monkeypatch.setattr(Cache, "match", match)
    while len(house.scheduler.state.waiting) > 2 * workers:
        house.turn()
    assert asked <= 2 * len(house.plans)


def test_at_most_so_many_workers_are_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    """All have the prefix and room for a newcomer: a few of the emptiest are asked, not all."""
    house = House(fleet={f"worker-{number}": ROOMY for number in range(30)}, check_every_step=False)
    for i in range(30):
        house.submit(i, [*STEM, i + 3], 100)
    while len(house.scheduler.state.waiting):
        house.turn()
    asked = 0
    real = Cache.match

    def match(cache: Cache, sequence: Sequence) -> list[int]:
        nonlocal asked
        asked += 1
        return real(cache, sequence)

    monkeypatch.setattr(Cache, "match", match)
    house.submit(100, [*STEM, 900], 5)
    for name in house.rigs:
        before = asked
        house.take_result()
        house.plan_for(name)
        assert asked - before <= MAX_WEIGHED + 1
    house.run()
    assert_right(house.received[100], [*STEM, 900], 5)


def test_what_a_look_has_left_to_a_worker_counts_as_its_company() -> None:
    """Twenty ask for a prefix that another worker holds. A look leaves it a few of them, not all, though none
    of them is seated there yet: the worker that looks takes its part.
    """
    house = House(fleet={"a": ROOMY, "b": ROOMY})
    house.submit(0, STEM, 1)
    house.run()
    (home,) = house.homes(0)
    other = "b" if home == "a" else "a"
    for i in range(1, 21):
        house.submit(i, [*STEM, i + 3], 50)
    house.plan_for(other)
    assert house.rigs[other].seats.running
    house.run()
    house.assert_empty()


def test_a_prefix_that_arrives_where_another_worker_was_to_make_room() -> None:
    """The third fits nowhere, and the emptier worker makes room for it; the first one's prompt is its own."""
    house = House(fleet=dict.fromkeys("ab", replace(SMALL, num_blocks=17, max_num_batched_tokens=256)))
    own, other = prompt(1, 200), prompt(2, 190)
    first, second, third = (
        house.submit(i, ids, n) for i, (ids, n) in enumerate(((own, 40), (other, 60), (own, 9)))
    )
    while not third.ids:
        house.turn()
        assert [first.ended, second.ended] == [False, False], "it waited for somebody's end"
    house.run()
    assert_right(third, own, 9)
    house.assert_empty()
