"""Short steps go on in one plan while nobody waits: fewer plans, the same answers, nobody held up."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from hundredfold_scheduler.core.beam_search import BeamTerms
from hundredfold_scheduler.core.failures import WorkerProtocolError
from hundredfold_scheduler.core.integrity import check_all
from hundredfold_scheduler.core.scheduler import SchedulerConfig
from hundredfold_scheduler.core.step import StepResult
from support.fake_worker import expected_output
from support.scheduler_harness import BY_LENGTH, SMALL, Harness
from support.scheduler_simulation import UNBOUNDED, Cost, Simulation

QUICK = Cost(fixed=0.004, per_row=0.0001)
AHEAD = SchedulerConfig(UNBOUNDED, run_ahead_s=0.016)


def simulated(config: SchedulerConfig, requests: int = 1, cost: Cost = QUICK) -> Simulation:
    simulation = Simulation(config, cost=cost)
    for _ in range(requests):
        simulation.submit(20, 100)
    return simulation


def test_several_tokens_in_one_plan() -> None:
    ahead, apart = simulated(AHEAD), simulated(SchedulerConfig(UNBOUNDED))
    ahead.run()
    apart.run()
    plans = [plan for _, _, plan in ahead.steps]
    assert {plan.num_repeats for plan in plans[4:-2]} == {3}
    assert len(plans) < len(apart.steps) / 3
    assert len(ahead.lives[0].token_times) == 100
    assert ahead.lives[0].ended == pytest.approx(apart.lives[0].ended, rel=0.01)
    assert ahead.scheduler.state.totals.output_tokens == 100
    for counted in ("computed_tokens", "prefill_tokens", "output_tokens", "recomputed_tokens"):
        totals = (one.scheduler.state.totals for one in (ahead, apart))
        assert len({getattr(total, counted) for total in totals}) == 1, counted


def test_long_steps_are_planned_one_by_one() -> None:
    simulation = simulated(AHEAD, cost=Cost(fixed=0.015))
    simulation.run()
    assert not any(plan.num_repeats for _, _, plan in simulation.steps[4:])


def test_what_is_known_badly_is_tried_with_care() -> None:
    """The first steps of a worker may be thought shorter than they are."""
    simulation = simulated(AHEAD, cost=Cost(fixed=0.0005))
    simulation.run()
    repeats = [plan.num_repeats for _, _, plan in simulation.steps]
    assert max(repeats) == 15
    assert all(later <= 2 * earlier + 1 for earlier, later in pairwise(repeats))


def test_who_comes_waits_for_what_was_sent() -> None:
    """Two plans of 16 ms are sent at most; then the prompt comes, and nothing goes on beside it."""
    simulation = simulated(AHEAD)
    simulation.at(0.2, lambda: simulation.submit(20, 50))
    simulation.run()
    life = simulation.lives[1]
    assert life.started - life.submitted < 0.036
    first = next(i for i, (_, _, plan) in enumerate(simulation.steps) if len(plan.slots) == 2)
    assert simulation.steps[first][2].num_repeats == 0
    assert simulation.steps[first + 3][2].num_repeats > 0


def test_who_comes_waits_for_the_pass_that_runs() -> None:
    """Plans of 80 ms in passes of 10: the next plan is there when the pass ends, and that ends the others."""
    simulation = simulated(SchedulerConfig(UNBOUNDED, run_ahead_s=0.08), cost=Cost(fixed=0.01, per_row=0.0))
    for wait in (0.02, 0.035, 0.06):
        simulation.at(0.4 + 10 * wait, lambda: simulation.submit(20, 6))
    simulation.run()
    assert max(plan.num_repeats for _, _, plan in simulation.steps) == 7
    for life in list(simulation.lives.values())[1:]:
        assert life.started - life.submitted < 0.012
        assert life.first_token - life.submitted < 0.03
    assert len(simulation.lives[0].token_times) == 100


def test_many_go_on_for_as_long_as_their_text_rests_anyway() -> None:
    """16 ms each alone would be one pass of 40."""
    simulation = simulated(AHEAD, 64, Cost(fixed=0.008, per_row=0.0005))
    simulation.run()
    assert {plan.num_repeats for _, _, plan in simulation.steps[10:-2]} == {1}
    simulation = simulated(SchedulerConfig(UNBOUNDED), 64)
    simulation.run()
    assert not any(plan.num_repeats for _, _, plan in simulation.steps)


def test_nothing_goes_on_while_somebody_waits() -> None:
    """A seat that becomes free is given away at once."""
    limits = replace(Simulation().limits, max_num_seqs=1)
    simulation = Simulation(AHEAD, limits, QUICK)
    for _ in range(3):
        simulation.submit(20, 40)
    simulation.run()
    lone = simulation.lives[1].ended
    assert all(not plan.num_repeats for start, _, plan in simulation.steps if start < lone - 0.05)
    assert any(plan.num_repeats for start, _, plan in simulation.steps if start > lone)


class QuickHarness(Harness):
    """Passes of a millisecond."""

    def take_result(self) -> bool:
        if self.results:
            self.results[0].step_us = 1000 * (1 + self.results[0].num_repeats)
        return super().take_result()


def going(run_ahead_s: float = 0.006, warm: int = 2) -> QuickHarness:
    """Two that decode, so many of whose plans have gone on."""
    harness = QuickHarness(SMALL, 1, run_ahead_s=run_ahead_s)
    for stream_id in (0, 1):
        harness.submit(stream_id, [50 + stream_id] * 10, 100)
    while sum(plan.num_repeats > 0 for plan in harness.plans) < warm:
        harness.turn()
    harness.take_result()
    return harness


def test_blocks_are_taken_for_what_is_to_come() -> None:
    harness = going()
    harness.plan_ahead()
    plan = harness.plans[-1]
    assert (plan.num_tokens, plan.num_repeats) == ([6, 6], 5)
    check_all(harness.scheduler.state)
    harness.run()
    harness.assert_empty()
    for stream_id in (0, 1):
        want = expected_output([50 + stream_id] * 10, 100, BY_LENGTH, SMALL.vocab_size)
        assert harness.received[stream_id].ids == want


def test_nothing_is_taken_from_others_for_it() -> None:
    """What no block is left for is not planned, and nobody gives way for it."""
    harness = QuickHarness(replace(SMALL, num_blocks=3, max_model_len=48), 1, run_ahead_s=0.006)
    for stream_id in (0, 1):
        harness.submit(stream_id, [50 + stream_id] * 10, 22 if stream_id else 6)
    harness.run()
    harness.assert_empty()
    assert any(plan.num_repeats for plan in harness.plans)
    assert not harness.scheduler.state.totals.preemptions


def test_beams_are_planned_one_by_one() -> None:
    harness = QuickHarness(SMALL, 1, run_ahead_s=0.006)
    harness.submit(0, [50] * 10, 20, n=1, beams=BeamTerms(2, 1.0, None))
    harness.run()
    assert not any(plan.num_repeats for plan in harness.plans)


def test_a_result_with_more_passes_than_planned_is_refused() -> None:
    harness = going(run_ahead_s=0.003, warm=2)
    harness.plan_ahead()
    record = harness.seats.in_flight[0]
    assert record.num_repeats == 2
    computed = [sequence.computed + 4 for sequence in record.rows]
    lie = StepResult(record.step, computed, [4, 4], [7] * 8, num_repeats=3)
    with pytest.raises(WorkerProtocolError, match="has 3 repeats, planned were 2 at most"):
        harness.scheduler.apply(harness.seats, lie, harness.now)
