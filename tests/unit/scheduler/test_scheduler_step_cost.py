"""What a worker's steps cost, learned from their times; and what prompts may take of a step by it."""

from __future__ import annotations

import random

import pytest

from hundredfold_scheduler.core.budget import Budget
from hundredfold_scheduler.core.step_cost import FIRST_PAIRS, FIRST_TOKENS, Prices, StepCost, Work, pairs_of

MACHINES = {
    "small model": (0.02, 0.001_8, 1e-6, 0.001, 1e-6),
    "no fixed part": (0.0, 0.002, 1e-6, 0.002, 2e-6),
    "reads for nothing": (0.015, 0.000_25, 0.0, 0.000_15, 0.0),
    "reads dearly": (0.001, 0.000_1, 1e-6, 0.000_05, 1e-6),
    "slow": (1.0, 0.3, 2e-5, 0.08, 2e-5),
    "a tiny one": (0.000_3, 0.000_01, 1e-9, 0.000_004, 1e-9),
}
"""Seconds for a step, a row, a token that it reads, a prompt's token, a pair of it and one that it reads."""


def seconds(machine: tuple[float, ...], work: Work) -> float:
    """What such a step takes."""
    amounts = (1, work.rows, work.context, work.tokens, work.pairs)
    return sum(price * amount for price, amount in zip(machine, amounts, strict=True))


def mixed(rng: random.Random) -> Work:
    """A step of any size."""
    rows, tokens = rng.randrange(64), rng.choice([0, 0, rng.randrange(1, 500)])
    return Work(rows, rows * rng.randrange(4000), tokens, pairs_of(tokens, rng.randrange(4000)))


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_the_cost_of_steps_is_learned(machine: tuple[float, ...]) -> None:
    """From noisy steps of mixed sizes to within a tenth of nearly any step in their range."""
    rng = random.Random(5)
    cost = StepCost()
    for _ in range(200):
        work = mixed(rng)
        cost.observe(work, seconds(machine, work) * rng.uniform(0.95, 1.05))
    works = [mixed(rng) for _ in range(100)]
    wrong = [abs(cost.seconds(work) / seconds(machine, work) - 1) for work in works]
    assert sorted(wrong)[90] < 0.1
    assert max(wrong) < 0.3


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_short_prompts_and_even_steps_do_not_mislead_about_a_long_prompt(machine: tuple[float, ...]) -> None:
    """Noise alone tells a short prompt's tokens from what they read: the guess about a long one is bounded,
    and two of its steps correct it.
    """
    rng = random.Random(3)
    cost = StepCost()
    for step in range(300):
        tokens = 64 if step < 32 else 0
        work = Work(min(step, 32), 100 * min(step, 32), tokens, pairs_of(tokens, 0))
        cost.observe(work, seconds(machine, work) * rng.uniform(0.9, 1.1))
    prices, most = cost.prices(), 4 * max(machine[3] / 512, machine[4])
    assert 0 <= prices.per_pair < most
    for context in range(0, 4000, 100):
        work = Work(32, 3200, 100, pairs_of(100, context))
        if context >= 1000:
            assert cost.seconds(work) == pytest.approx(seconds(machine, work), rel=0.25)
        cost.observe(work, seconds(machine, work) * rng.uniform(0.97, 1.03))


def test_what_was_learned_stays_while_nothing_new_is_seen() -> None:
    """Hours of decodes alone say nothing about prompts, nor does a long prompt about decodes alone."""
    machine, rng = MACHINES["small model"], random.Random(2)
    cost = StepCost()
    alone, beside = Work(10, 1000), Work(10, 1000, 300, pairs_of(300, 0))
    for work in (alone, beside) * 25:
        cost.observe(work, seconds(machine, work))
    for _ in range(2000):
        cost.observe(alone, seconds(machine, alone) * rng.uniform(0.95, 1.05))
    assert cost.seconds(beside) == pytest.approx(seconds(machine, beside), rel=0.1)
    for context in range(0, 200_000, 100):
        work = Work(10, 1000, 100, pairs_of(100, context))
        cost.observe(work, seconds(machine, work) * rng.uniform(0.95, 1.05))
    assert cost.seconds(alone) == pytest.approx(seconds(machine, alone), rel=0.2)


def test_a_slower_machine_is_noticed_and_a_pause_hardly() -> None:
    cost = StepCost()
    works = [Work(8, 800, tokens, pairs_of(tokens, 0)) for tokens in (0, 100, 200, 300)]
    for factor in (1.0, 3.0):
        for work in works * 40:
            cost.observe(work, factor * (0.01 + 0.000_1 * work.tokens))
    assert cost.seconds(works[2]) == pytest.approx(0.09, rel=0.1)
    cost.observe(works[2], 5.0)
    assert cost.seconds(works[2]) == pytest.approx(0.09, rel=0.1)


def test_steps_that_all_have_as_many_prompt_tokens_are_not_thought_to_decode_slowly() -> None:
    """Whatever share of a step were its fixed part, they would look the same."""
    cost = StepCost()
    for context in range(0, 8000, 512):
        cost.observe(Work(1, 8000, 512, pairs_of(512, context)), 0.09)
    assert cost.seconds(Work(1, 8000)) < 0.03


def test_strange_steps_are_soon_forgotten() -> None:
    """Such as were over at once, because all rows had ended, and pauses: among a hundred others they do not
    count for much.
    """
    machine, rng = MACHINES["small model"], random.Random(9)
    cost = StepCost()
    for step in range(1000):
        work = mixed(rng)
        cost.observe(work, seconds(machine, work))
        if step % 100 == 50:
            cost.observe(mixed(rng), rng.choice([1e-6, 1e-4, 3.0, 1e4]))
            cost.observe(Work(), 1e-5)
    work = Work(20, 20_000, 200, pairs_of(200, 1000))
    assert cost.seconds(work) == pytest.approx(seconds(machine, work), rel=0.1)


def test_no_times_break_it() -> None:
    """From a microsecond to hours, whatever was computed."""
    rng = random.Random(9)
    cost = StepCost()
    for _ in range(500):
        work = rng.choice([Work(), mixed(rng), Work(4096, 1 << 26, 1 << 20, 1 << 36), Work(1, 1, 1, 1)])
        cost.observe(work, 10 ** rng.uniform(-6, 4))
        prices = cost.prices()
        assert 0 <= cost.seconds(work) < 1e12
        assert min(prices.per_token, prices.per_pair) >= 0


def test_nothing_is_risked_before_anything_is_known() -> None:
    cost = StepCost()
    assert cost.seconds(Work(5, 50, 50, 50)) == 0.0
    assert (cost.most_tokens, cost.most_pairs) == (FIRST_TOKENS, FIRST_PAIRS)
    cost.observe(Work(0, 0, 64, 100_000), 0.001)
    assert (cost.most_tokens, cost.most_pairs) == (128, 200_000)
    cost.observe(Work(0, 0, 1000, 10), 0.0)
    assert cost.most_tokens == 128


def test_a_budget_is_taken_as_far_as_it_goes_and_no_further() -> None:
    """Random chunks behind random contexts, some of them under a window: what ``most`` allows fits, one more
    does not, and what is set apart and comes back is not lost.
    """
    rng = random.Random(1)
    for _ in range(300):
        window = rng.choice([None, 100])
        prices = Prices(rng.choice([0.0, 1e-3]), rng.choice([0.0, 1e-6, 1e-4]))
        budget = Budget(rng.randrange(1, 500), rng.uniform(0, 0.5), rng.randrange(1 << 20), prices, window)
        tokens = budget.tokens
        for _ in range(rng.randrange(4)):
            context, parts = rng.randrange(5000), rng.randrange(1, 5)
            apart = budget.set_apart(parts)
            chunk = apart.most(context)
            if chunk > 0:
                was_fresh = apart.fresh
                assert apart.covers([(context, chunk)]) or (was_fresh and chunk == 1)
                assert not apart.covers([(context, chunk + 2)])
                apart.spend(context, chunk)
                tokens -= chunk
            budget.add(apart)
            assert budget.tokens == tokens


def test_a_token_is_always_there_for_the_first() -> None:
    budget = Budget(100, 0.0, 0.0, Prices(1.0, 1.0))
    assert budget.most(10_000) == 1
    budget.spend(10_000, 1)
    assert budget.most(0) == 0
    assert Budget(0).most(0) == 0


def test_a_prompt_that_nearly_fits_comes_to_its_end() -> None:
    """The few tokens that remained would cost it another step."""
    budget = Budget(100, 0.05, prices=Prices(1e-3), slack=0.01)
    assert [budget.chunk(0, left) for left in (40, 50, 60, 61, 200)] == [40, 50, 60, 50, 50]
    assert Budget(55, 0.05, prices=Prices(1e-3), slack=0.01).chunk(0, 60) == 50
    assert Budget(100, 0.05, prices=Prices(1e-3)).chunk(0, 60) == 50
