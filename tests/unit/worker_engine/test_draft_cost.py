"""How many drafts are worth it: what a step costs against what it is likely to bring."""

from __future__ import annotations

import numpy as np
import pytest

from hundredfold_worker.engine.draft_cost import DraftCost
from hundredfold_worker.sampling.params import SamplingParams
from support.drafters import Knowing
from support.step_driver import ints
from support.toy_driver import toy_driver

FLAT = DraftCost([1, 8], [1.0, 1.0])
"""Positions cost nothing: a device that waits for its memory."""
STEEP = DraftCost([1, 8], [1.0, 8.0])
"""Every position costs as much as the first: a device that computes all the time."""
HALF = DraftCost([1, 3], [1.0, 2.0])
"""A position costs half of what the first one does."""


def allot(
    cost: DraftCost, chances: list[float], offered: list[int], rows: int = 0, most: int = 99
) -> list[int]:
    rows = rows or len(chances)
    return cost.allot(np.array(chances), ints(offered), rows, rows, most).tolist()


def test_free_positions_are_all_tried() -> None:
    assert allot(FLAT, [0.5, 0.9], [5, 3]) == [5, 3]


def test_positions_that_cost_what_they_bring_are_not() -> None:
    assert allot(STEEP, [1.0], [5]) == [0]
    assert allot(STEEP, [1.0] * 4, [5] * 4) == [0] * 4


@pytest.mark.parametrize(("chance", "count"), [(0.2, 0), (0.45, 0), (0.6, 1), (0.75, 1), (0.9, 3)])
def test_the_best_rate_alone(chance: float, count: int) -> None:
    """1 + p + p² … over 1 + n/2: worth it from p = 1/2 on, and the longer the surer."""
    rates = [sum(chance**i for i in range(n + 1)) / (1 + n / 2) for n in range(6)]
    assert allot(HALF, [chance], [5]) == [count]
    assert rates[count] >= max(rates) - 0.03


def test_the_likeliest_come_first() -> None:
    """Whoever is likely to be right drafts, who is not rests; and where only a few may, those."""
    assert allot(HALF, [0.05, 0.95], [5, 5])[0] == 0
    assert allot(FLAT, [0.2, 0.9, 0.0], [5, 5, 5], most=3) == [0, 3, 0]
    assert allot(FLAT, [0.9], [5], most=0) == [0]


def test_a_prompt_beside_makes_drafts_cheap() -> None:
    """The step is long anyway; what counts is what the drafts add to it."""
    cost = DraftCost([1, 512], [1.0, 512.0])
    assert cost.allot(np.array([0.9]), ints([5]), 1, 1, 99).tolist() == [0]
    assert cost.allot(np.array([0.9]), ints([5]), 1, 401, 99).tolist() == [5]


def test_a_step_that_was_held_up_says_nothing_of_larger_ones() -> None:
    cost = DraftCost([1, 2, 4], [9.0, 2.0, 3.0])
    assert cost.seconds(ints([1, 2, 3, 4, 6])).tolist() == [2.0, 2.0, 2.5, 3.0, 4.0]


def test_rows_beyond_which_nothing_pays() -> None:
    """A fixed part that a few rows share; with more of them it is nothing, with steep costs it never was."""
    cost = DraftCost([1, 64], [1.0, 7.3])  # 0.9 fixed, 0.1 each
    rows = cost.most_rows(5, 256)
    assert 10 < rows < 256
    sure = np.ones(rows + 1)
    assert not cost.allot(sure, np.full(rows + 1, 5), rows + 1, rows + 1, 9999).any()
    assert cost.allot(sure[:rows], np.full(rows, 5), rows, rows, 9999).any()
    assert FLAT.most_rows(5, 256) == 256
    assert STEEP.most_rows(5, 256) == 0


def test_steps_with_drafts_that_take_longer_than_they_should() -> None:
    """They take twice what the table lets expect: after a while nobody drafts. Later drafts are tried again:
    what was held against them is forgotten.
    """
    cost = DraftCost([1, 6], [1.0, 1.5])
    assert allot(cost, [0.5], [5]) != [0]
    for _ in range(60):
        cost.observe(1, 0, 7.0)
        cost.observe(6, 5, 7.0 * 3.6)
    assert allot(cost, [0.5], [5]) == [0]
    for _ in range(400):
        cost.observe(1, 0, 7.0)
    assert allot(cost, [0.5], [5]) != [0]


def test_a_machine_that_is_slower_than_at_the_start_is_no_reason() -> None:
    """All steps take three times as long; drafts are worth what they were. So they are where a step without
    drafts is long ago, and the machine another since.
    """
    cost = DraftCost([1, 6], [1.0, 1.5])
    before = allot(cost, [0.5], [5])
    for _ in range(100):
        cost.observe(1, 0, 3.0)
        cost.observe(6, 5, 4.5)
    for _ in range(1000):
        cost.observe(6, 5, 9.0)
    assert allot(cost, [0.5], [5]) == before != [0]


def test_a_step_that_was_held_up_is_no_reason() -> None:
    cost = DraftCost([1, 6], [1.0, 1.5])
    before = allot(cost, [0.6], [5])
    cost.observe(1, 0, 1.0)
    cost.observe(6, 5, 500.0)
    assert allot(cost, [0.6], [5]) == before != [0]


def test_a_sequence_rests_where_drafts_are_wrong_and_comes_back_when_they_are_right() -> None:
    """Report 51: resting costs no position; what is drawn meanwhile says when it is worth it again."""
    params = SamplingParams(max_tokens=200)
    plain = toy_driver()
    want = plain.add(0, [1, 2, 3], params)
    plain.run()
    drafter = Knowing()
    driver = toy_driver(drafter=drafter, cost=HALF)
    got = driver.add(0, [1, 2, 3], params)
    widths = []
    while not got.over:
        if len(got.output) >= 100:
            drafter.answers[0] = want.prompt + want.output
        result = driver.run_step()
        widths.append(int(result.num_drafted.sum()) if len(result.num_drafted) else 0)
    assert got.output == want.output
    early, late = widths[:95], widths[-15:]
    assert sum(early) <= 3, "drafts that are never right go on being tried"
    assert sum(late) >= 15, "drafts that are always right are not tried again"


def test_one_that_loses_does_not_hold_up_one_that_wins() -> None:
    params = SamplingParams(max_tokens=60)
    plain = toy_driver()
    want = [plain.add(slot, [5, slot], params) for slot in range(2)]
    plain.run()
    drafter = Knowing()
    drafter.answers[1] = want[1].prompt + want[1].output
    driver = toy_driver(drafter=drafter, cost=rising_by(0.4))
    got = [driver.add(slot, [5, slot], params) for slot in range(2)]
    drafted = np.zeros(2, dtype=np.int64)
    while not got[1].over:
        slots = [slot for slot, track in enumerate(got) if not track.over]
        result = driver.run_step(slots)
        if len(result.num_drafted):
            np.add.at(drafted, slots, result.num_drafted)
    assert len(got[0].output) < 60
    assert drafted[1] > 5 * drafted[0]


def test_new_sequences_begin_with_what_is_usual() -> None:
    """Where drafts have been wrong for many sequences, the next ones try fewer before they rest."""
    params = SamplingParams(max_tokens=30)
    driver = toy_driver(drafter=Knowing(), cost=rising_by(0.3))
    drafted = []
    for number in range(12):
        before = driver.engine.totals.drafted_tokens
        driver.add(0, [1, 2, number], params)
        driver.run()
        driver.release(0)
        drafted.append(driver.engine.totals.drafted_tokens - before)
    assert 0 < drafted[0] <= 12
    assert drafted[-1] < drafted[0]


def rising_by(each: float) -> DraftCost:
    """A first position of 1 second, others of ``each``."""
    return DraftCost([1, 2], [1.0, 1.0 + each])
