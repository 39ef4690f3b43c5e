"""When newcomers start and how long a step is: each setting's effect, and that its default has none."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from hundredfold_scheduler.core.pacing import BesideDecodes, PromptShare, StartPace, WithinTime
from hundredfold_scheduler.core.scheduler import SchedulerConfig
from support.scheduler_simulation import CPU_LIKE, UNBOUNDED, Cost, Simulation, percentile
from support.whole_budget import WholeBudget


def batch_sizes(simulation: Simulation) -> list[int]:
    """Newcomers of each step that had some."""
    return [len(plan.new_sequences) for _, _, plan in simulation.steps if plan.new_sequences]


@pytest.mark.parametrize(("timeout_ms", "first"), [(0, 1), (50, 6)])
def test_an_idle_worker_gathers_a_batch(timeout_ms: int, first: int) -> None:
    """Six requests within 40 ms: they start one by one, or together after 50 ms."""
    simulation = Simulation(SchedulerConfig(UNBOUNDED, pace=StartPace(timeout_ms / 1e3)))
    for i in range(6):
        simulation.at(1.0 + 0.008 * i, lambda: simulation.submit(20, 4))
        simulation.at(9.0 + 0.008 * i, lambda: simulation.submit(20, 4))
    simulation.run(60.0)
    assert batch_sizes(simulation)[0] == first
    for number, at in ((0, 1.0), (6, 9.0)):  # again when it is idle again
        assert simulation.lives[number].started == pytest.approx(at + timeout_ms / 1e3)
    assert all(life.ended for life in simulation.lives.values())


@pytest.mark.parametrize(("length", "count"), [(5, 64), (300, 2)])
def test_a_batch_that_is_full_is_not_waited_for(length: int, count: int) -> None:
    """All seats, or all tokens of a step, are spoken for before the second is over."""
    simulation = Simulation(SchedulerConfig(UNBOUNDED, pace=StartPace(1.0)))
    for i in range(count):
        simulation.at(1.0 + 0.001 * i, lambda: simulation.submit(length, 2))
    simulation.run()
    assert simulation.lives[0].started == pytest.approx(1.0 + 0.001 * (count - 1))


def test_only_an_idle_worker_gathers() -> None:
    """One that decodes takes newcomers at once."""
    simulation = Simulation(SchedulerConfig(UNBOUNDED, pace=StartPace(1.0)))
    simulation.at(0.0, lambda: simulation.submit(20, 200))
    simulation.at(2.0, lambda: simulation.submit(20, 4))
    simulation.run()
    waited = [life.started - life.submitted for life in simulation.lives.values()]
    assert waited[0] == pytest.approx(1.0)
    assert waited[1] < 0.05


def test_a_request_that_goes_away_while_it_is_waited_for_leaves_nothing() -> None:
    simulation = Simulation(SchedulerConfig(UNBOUNDED, pace=StartPace(1.0)))
    simulation.at(0.0, lambda: simulation.submit(20, 4))
    simulation.at(0.5, lambda: simulation.scheduler.cancel(simulation.replica, 0, simulation.now))
    simulation.run(0.6)
    assert simulation.scheduler.plan(simulation.worker, 0.7) is None
    assert simulation.scheduler.next_due(0.7) is None
    simulation.at(5.0, lambda: simulation.submit(20, 4))
    simulation.run()
    assert simulation.lives[1].started == pytest.approx(6.0)


@pytest.mark.parametrize("interval", [1, 8])
def test_new_prompts_start_every_so_many_steps_while_others_decode(interval: int) -> None:
    """Item 8: a request in each step would disturb every step of a decode."""
    simulation = Simulation(SchedulerConfig(UNBOUNDED, pace=StartPace(interval=interval)))
    simulation.at(0.0, lambda: simulation.submit(20, 300))
    for i in range(60):
        simulation.at(0.5 + 0.02 * i, lambda: simulation.submit(20, 2))
    simulation.run()
    starts = [plan.step for _, _, plan in simulation.steps if plan.new_sequences][1:]
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert min(gaps) >= interval
    assert (max(batch_sizes(simulation)) > 3) is (interval == 8)
    assert all(life.ended for life in simulation.lives.values())


def test_the_interval_holds_nobody_up_where_nothing_decodes() -> None:
    simulation = Simulation(SchedulerConfig(UNBOUNDED, pace=StartPace(interval=1000)))
    for i in range(5):
        simulation.at(float(i), lambda: simulation.submit(20, 1))
    simulation.run()
    assert all(life.started == life.submitted for life in simulation.lives.values())


def gaps_beside_a_long_prompt(config: SchedulerConfig) -> list[float]:
    """Seconds between two tokens of four decodes while a prompt of 64 steps comes in (item 8)."""
    simulation = Simulation(config, replace(CPU_LIKE, max_model_len=40_000))
    for _ in range(4):
        simulation.at(0.0, lambda: simulation.submit(20, 400))
    simulation.at(1.0, lambda: simulation.submit(4000, 2))  # the steps' cost is learned from it
    simulation.at(4.0, lambda: simulation.submit(64 * 512, 2))
    simulation.run()
    times = [life.token_times for life in list(simulation.lives.values())[:4]]
    return [b - a for own in times for a, b in pairwise(own) if a > 4.0]


def test_a_long_prompt_does_not_stretch_steps_past_the_target() -> None:
    """Steps of 93 ms without a target, of at most 40 ms with it; and the prompt gets all of the 40."""
    without = gaps_beside_a_long_prompt(SchedulerConfig(UNBOUNDED, share=WholeBudget()))
    within = gaps_beside_a_long_prompt(SchedulerConfig(UNBOUNDED, share=WithinTime(0.040)))
    assert max(without) > 0.09
    assert max(within) < 0.042
    assert sorted(within)[len(within) // 2] > 0.036


MACHINES = {
    "small model": Cost(0.02, 0.001_8, 0.001, 1e-6, 1e-6, 0.04),
    "reads dearly": Cost(0.002, 0.000_5, 0.000_1, 4e-7, 4e-7, 0.04),
    "large model": Cost(0.2, 0.01, 0.01, 2e-6, 2e-6, 0.04),
}


@pytest.mark.parametrize("cost", MACHINES.values(), ids=MACHINES)
def test_a_token_of_a_long_prompt_is_dearer_the_more_is_before_it(cost: Cost) -> None:
    """4,000 tokens among 32 decodes on machines that the scheduler has seen nothing of but their prompts: no
    step is more than 15 % over a target of two decode steps, half of them reach nine tenths of it.
    """
    target_s = 2 * (cost.fixed + 32 * (cost.per_row + 200 * cost.per_context))
    simulation = Simulation(SchedulerConfig(UNBOUNDED, share=WithinTime(target_s)), cost=cost)
    for _ in range(32):
        simulation.at(0.0, lambda: simulation.submit(64, 2000))
    simulation.at(100 * target_s, lambda: simulation.submit(4000, 8))
    simulation.run()
    long = simulation.lives[32]
    times = sorted(
        end - start for start, end, _ in simulation.steps if long.started <= start and end <= long.first_token
    )
    assert times[-1] <= 1.15 * target_s
    assert times[len(times) // 2] >= 0.9 * target_s


def test_prompts_come_to_an_end_where_decodes_take_the_whole_target() -> None:
    simulation = Simulation(
        SchedulerConfig(UNBOUNDED, share=WithinTime(0.010)), cost=Cost(fixed=0.02), limits=CPU_LIKE
    )
    simulation.at(0.0, lambda: simulation.submit(20, 400))
    simulation.at(1.0, lambda: simulation.submit(640, 2))
    simulation.run()
    assert all(life.ended for life in simulation.lives.values())


def test_a_target_that_is_never_reached_changes_nothing() -> None:
    """A target above all steps gives the plans of no target, once the worker has shown what it can."""

    def plans(config: SchedulerConfig) -> list[list[int]]:
        simulation = Simulation(config)
        for i in range(12):
            simulation.at(0.3 * i, lambda: simulation.submit(500, 20))
        simulation.run()
        return [plan.num_tokens for start, _, plan in simulation.steps if start > 1.0]

    without = SchedulerConfig(UNBOUNDED, share=WholeBudget())
    assert plans(SchedulerConfig(UNBOUNDED, share=WithinTime(60.0))) == plans(without)


SMALL_MODEL = Cost(fixed=0.023, per_row=0.000_89, per_token=0.000_25)
"""About that of the default model on two cores: 80 ms a step at 64 rows, 250 at 256."""


def stretched(decodes: int) -> tuple[float, float]:
    """Longest step and time to the first token of a prompt of 4,000 tokens that comes among so many decodes,
    the step in units of the median.
    """
    simulation = Simulation(cost=SMALL_MODEL)
    for _ in range(decodes):
        simulation.at(0.0, lambda: simulation.submit(64, 300))
    simulation.at(6.0, lambda: simulation.submit(4000, 8))
    simulation.run()
    alone = [
        end - start for start, end, plan in simulation.steps if start > 3.0 and set(plan.num_tokens) == {1}
    ]
    longest = max(end - start for start, end, _ in simulation.steps if start > 3.0)
    return longest / sorted(alone)[len(alone) // 2], simulation.lives[decodes].ttft


def test_by_default_a_long_prompt_stretches_no_step_past_three_times_the_median() -> None:
    """And the prompt is there as soon as that allows: 4,000 tokens at 1.5 times 51 ms a step are 1.6 s."""
    longest, ttft = stretched(32)
    assert longest <= 3.0
    assert ttft < 2.0


def tokens_per_s(share: PromptShare, streams: int, length: int, output: int) -> float:
    """Output tokens a second of so many streams, each of three requests one after another."""
    limits = replace(CPU_LIKE, max_num_seqs=streams, num_blocks=streams * 40)
    simulation = Simulation(SchedulerConfig(UNBOUNDED, share=share), limits, SMALL_MODEL)
    left = [2 * streams]

    def ended(_: int) -> None:
        if left[0]:
            left[0] -= 1
            simulation.submit(length, output)

    simulation.on_end = ended
    for _ in range(streams):
        simulation.submit(length, output)
    simulation.run()
    return 3 * streams * output / simulation.now


@pytest.mark.parametrize(("streams", "length", "output"), [(64, 64, 128), (256, 64, 64), (32, 1000, 16)])
def test_by_default_throughput_is_that_of_whole_budgets(streams: int, length: int, output: int) -> None:
    """Chats, and prompts that take longer than their answers. Sooner first tokens cost some steps."""
    whole = tokens_per_s(WholeBudget(), streams, length, output)
    assert tokens_per_s(BesideDecodes(), streams, length, output) >= 0.97 * whole


def beside_decodes(decodes: int, share: PromptShare, at_once: int = 1, seats: int = 64) -> Simulation:
    """So many decode, and twenty prompts come of 64 tokens, so many at a time."""
    limits = replace(CPU_LIKE, max_num_seqs=seats)
    simulation = Simulation(SchedulerConfig(UNBOUNDED, share=share), limits, SMALL_MODEL)
    for _ in range(decodes):
        simulation.at(0.0, lambda: simulation.submit(16, 300))
    for i in range(20):
        simulation.at(3.0 + 0.31 * (i // at_once), lambda: simulation.submit(64, 1))
    simulation.run()
    return simulation


def have_decodes(simulation: Simulation) -> list[bool]:
    """Of the steps that compute a whole prompt: whether others decode in them."""
    plans = [plan.num_tokens for start, _, plan in simulation.steps if start > 3.0]
    return [1 in counts for counts in plans if 64 in counts]


def test_a_short_prompt_gets_a_step_before_that_of_many_decodes() -> None:
    """Its first token does not wait for theirs, and they wait no longer than for the two steps."""
    apart, together = beside_decodes(32, BesideDecodes()), beside_decodes(32, WholeBudget())
    assert have_decodes(apart) == [False] * 20
    assert have_decodes(together) == [True] * 20
    waits = [sum(life.ttft for life in list(s.lives.values())[32:]) for s in (apart, together)]
    assert waits[0] < 0.8 * waits[1]
    gaps = [b - a for a, b in pairwise(apart.lives[0].token_times) if a > 3.0]
    assert max(gaps) <= 2 * SMALL_MODEL.fixed + 32 * SMALL_MODEL.per_row + 64 * SMALL_MODEL.per_token + 1e-9


@pytest.mark.parametrize(
    ("decodes", "share"),
    [(8, BesideDecodes()), (32, WithinTime(0.2))],
    ids=["few decodes", "a time for steps"],
)
def test_otherwise_prompts_share_their_steps(decodes: int, share: PromptShare) -> None:
    """A step more costs more than 8 decodes, which the first prompts tell; two steps take longer than one."""
    assert all(have_decodes(beside_decodes(decodes, share))[2:])


def test_a_prompt_that_does_not_end_by_it_gets_no_step_of_its_own() -> None:
    """Of 4,000 tokens: every step of it has all decodes, but perhaps that of its end."""
    simulation = Simulation(cost=SMALL_MODEL)
    for _ in range(32):
        simulation.at(0.0, lambda: simulation.submit(64, 300))
    simulation.at(6.0, lambda: simulation.submit(4000, 8))
    simulation.run()
    plans = [plan.num_tokens for start, _, plan in simulation.steps if start > 3.0]
    without = [i for i, counts in enumerate(plans) if counts and 1 not in counts]
    assert without in ([], [max(i for i, counts in enumerate(plans) if max(counts, default=0) > 1)])


def test_while_somebody_waits_for_a_seat_steps_are_of_all() -> None:
    """Two come at a time for one seat: the first shares its step, the other has one of its own."""
    assert sum(have_decodes(beside_decodes(32, BesideDecodes(), at_once=2, seats=33))) == 10


def test_who_comes_while_a_long_step_runs_is_in_the_next_one() -> None:
    """Though that is planned before the step's result is in: the worker never waits for a plan."""
    simulation = Simulation(cost=replace(SMALL_MODEL, noise=0.1))
    for _ in range(32):
        simulation.at(0.0, lambda: simulation.submit(64, 800))
    for i in range(200):
        simulation.at(3.0 + 0.0817 * i, lambda: simulation.submit(16, 1))
    simulation.run()
    begun = [start for start, _, _ in simulation.steps]
    waited = []
    for life in list(simulation.lives.values())[32:]:
        step = next(i for i, (_, end, _) in enumerate(simulation.steps) if life.first_token <= end)
        waited.append(sum(life.submitted < start <= begun[step] for start in begun))
    assert sorted(waited)[int(0.7 * len(waited))] == 1
    gaps = [later[0] - earlier[1] for earlier, later in pairwise(simulation.steps) if 3.0 < later[0] < 20.0]
    assert max(gaps) == 0.0


@pytest.mark.parametrize(("noise", "least", "most"), [(0.05, 0.2, 0.21), (0.6, 0.4, 0.9)])
def test_the_more_uneven_steps_are_the_sooner_the_next_is_planned(
    noise: float, least: float, most: float
) -> None:
    """A step that ends before the next is planned leaves the worker waiting: that should be seldom."""
    simulation = Simulation(cost=replace(SMALL_MODEL, noise=noise))
    for _ in range(32):
        simulation.at(0.0, lambda: simulation.submit(64, 600))
    leads: list[float] = []
    for i in range(250):
        simulation.at(3.0 + 0.1 * i, lambda: leads.append(simulation.worker.lead))
    simulation.run()
    assert least <= sum(leads) / len(leads) <= most


def test_requests_by_chance_at_seven_tenths_of_capacity_start_soon() -> None:
    """p99 of time to first token under Poisson load: that of an idle server and four median steps."""
    rng = random.Random(1)
    capacity = tokens_per_s(BesideDecodes(), 64, 64, 128) / 128
    idle, simulation = Simulation(cost=SMALL_MODEL), Simulation(cost=SMALL_MODEL)
    for i in range(4):
        idle.at(5.0 * i, lambda: idle.submit(64, 128))
    idle.run()
    at = 0.0
    for _ in range(400):
        at += rng.expovariate(0.7 * capacity)
        simulation.at(at, lambda: simulation.submit(64, 128))
    simulation.run()
    steps = sorted(end - start for start, end, _ in simulation.steps)
    p99 = percentile([life.ttft for life in simulation.lives.values()], 0.99)
    assert p99 <= idle.lives[3].ttft + 4 * steps[len(steps) // 2]


def test_two_prompts_under_way_get_no_token_beyond_the_time() -> None:
    """Nobody is about to start: nothing that was kept for newcomers comes back as if nothing were taken."""
    cost = Cost(fixed=0.01, per_row=0.001, per_token=0.002)
    target_s = 0.01 + 4 * 0.001 + 25.9 * 0.002
    simulation = Simulation(SchedulerConfig(UNBOUNDED, share=WithinTime(target_s)), cost=cost)
    for _ in range(4):
        simulation.at(0.0, lambda: simulation.submit(4, 1000))
    simulation.at(4.0, lambda: simulation.submit(2000, 2))
    simulation.at(4.2, lambda: simulation.submit(700, 2))
    simulation.run()
    longs = [simulation.lives[4], simulation.lives[5]]
    begun, ended = max(life.started for life in longs), min(life.first_token for life in longs)
    times = [end - start for start, end, _ in simulation.steps if begun < start and end <= ended]
    assert len(times) > 20
    assert max(times[1:]) <= target_s  # in the first the second prompt had yet to start
