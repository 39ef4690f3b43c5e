"""Plans whose rows go on by themselves: the same answers as a token a step, in fewer steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hundredfold_worker.engine.plan import EndReason, NewSequence, StepPlan
from hundredfold_worker.failures import BrokenPlan
from hundredfold_worker.sampling.params import SamplingParams
from support.drafters import Knowing
from support.step_driver import ints
from support.toy_driver import toy_driver
from unit.worker_engine.test_engine_speculation import answer_of, random_cases

GREEDY = SamplingParams(max_tokens=24)


@pytest.mark.parametrize("error_rate", [None, 0.0, 0.6, 1.0])
@pytest.mark.parametrize("repeats", [1, 3, 15])
def test_the_same_answers(repeats: int, error_rate: float | None) -> None:
    """Every parameter, greedy and seeded, with and without drafts; ends in the middle of a step."""
    rng = np.random.default_rng(repeats)
    for _ in range(6):
        cases = random_cases(rng)
        plain = toy_driver(chunk=7)
        want = [plain.add(slot, *case) for slot, case in enumerate(cases)]
        plain.run()
        drafter = None
        if error_rate is not None:
            drafter = Knowing(error_rate, seed=3)
            drafter.answers = {slot: track.prompt + track.output for slot, track in enumerate(want)}
        driver = toy_driver(chunk=int(rng.choice([4, 1 << 30])), drafter=drafter)
        driver.repeats = repeats
        got = [driver.add(slot, *case) for slot, case in enumerate(cases)]
        driver.run()
        assert list(map(answer_of, got)) == list(map(answer_of, want))
        assert driver.step < plain.step or driver.chunk < plain.chunk
        totals = driver.engine.totals
        assert totals.output_tokens == plain.engine.totals.output_tokens
        assert 0 <= totals.accepted_tokens <= totals.drafted_tokens


def test_a_row_goes_on_as_long_as_it_has_tokens_left() -> None:
    driver = toy_driver()
    tracks = [driver.add(slot, [5, 9], GREEDY) for slot in (0, 1)]
    driver.run_step()
    driver.step += 1
    plan = StepPlan(driver.step, slots=ints([0, 1]), num_tokens=ints([4, 2]), num_repeats=7)
    result = driver.engine.step(plan)
    driver.take(plan, result)
    assert (result.num_outputs.tolist(), result.num_computed.tolist()) == ([4, 2], [6, 4])
    assert result.num_repeats == 3
    assert tracks[0].output[:3] == tracks[1].output
    assert driver.engine.totals.steps == 5


def test_a_row_that_ends_leaves_the_others() -> None:
    driver = toy_driver()
    driver.repeats = 4
    short = driver.add(0, [5, 9], replace(GREEDY, max_tokens=2))
    driver.add(1, [5, 9], GREEDY)
    result = driver.run_step()
    assert (result.num_outputs.tolist(), short.end) == ([2, 5], EndReason.LENGTH)
    assert [(end.row, end.reason) for end in result.ends] == [(0, EndReason.LENGTH)]


def test_when_all_have_ended_nothing_is_repeated() -> None:
    driver = toy_driver()
    driver.repeats = 9
    driver.add(0, [5, 9], replace(GREEDY, max_tokens=3))
    assert driver.run_step().num_repeats == 2


def test_nothing_is_repeated_while_the_next_plan_brings_sequences() -> None:
    """What is left of a plan then is the next one's; the answer is the same."""
    plain, driver = toy_driver(), toy_driver()
    want, got = (one.add(0, [5, 9], GREEDY) for one in (plain, driver))
    plain.run()
    driver.repeats = 9
    asked = iter([False, False, True, *[False] * 99])
    driver.engine.newcomers_wait = lambda: next(asked)
    result = driver.run_step()
    assert (result.num_repeats, result.num_outputs.tolist()) == (2, [3])
    driver.run()
    assert answer_of(got) == answer_of(want)


def test_a_pass_with_drafts_is_the_last() -> None:
    plain = toy_driver()
    want = plain.add(0, [5, 9], GREEDY)
    plain.run()
    drafter = Knowing(0.0, seed=1)
    drafter.answers = {0: want.prompt + want.output}
    driver = toy_driver(drafter=drafter)
    driver.add(0, [5, 9], GREEDY)
    driver.run_step()
    driver.repeats = 3
    result = driver.run_step()
    assert result.num_repeats == 0
    assert result.num_accepted == int(result.num_outputs[0]) - 1 > 0


def test_rows_reach_as_far_as_their_blocks() -> None:
    driver = toy_driver(block_size=16, num_blocks=16)
    driver.add(0, [5, 9], GREEDY)
    driver.run_step()
    plan = StepPlan(2, slots=ints([0]), num_tokens=ints([31]), num_repeats=30)
    with pytest.raises(BrokenPlan, match="row 0 reaches token 33 of slot 0, whose 2 blocks hold 32"):
        driver.engine.step(plan)


def test_beams_do_not_go_on_by_themselves() -> None:
    driver = toy_driver()
    beam = replace(GREEDY, num_candidates=4)
    plan = StepPlan(
        1,
        new_sequences=(NewSequence(0, 1, ints([5, 9]), beam, block_ids=driver.blocks_of(0)),),
        slots=ints([0]),
        num_tokens=ints([2]),
        num_repeats=1,
    )
    with pytest.raises(BrokenPlan, match="num_repeats is 1, row 0 is a beam"):
        driver.engine.step(plan)


def test_a_pass_is_within_the_budget_not_the_plan() -> None:
    """Rows that go on compute a token each in a pass."""
    driver = toy_driver(max_num_batched_tokens=8)
    for slot in range(4):
        driver.add(slot, [5], GREEDY)
    driver.repeats = 7
    assert driver.run_step().num_outputs.tolist() == [8] * 4
