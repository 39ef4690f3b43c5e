"""Hours of load in seconds: the real core before a worker that takes time, on a clock that jumps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from hundredfold_scheduler.core.policy import (
    CheapestOfLowestPriority,
    FirstComeFirstServed,
    LatestOfLowestPriority,
    StrictPriority,
)
from hundredfold_scheduler.core.scheduler import SchedulerConfig
from support.scheduler_simulation import CPU_LIKE, UNBOUNDED, Simulation, percentile
from support.whole_budget import WholeBudget

AS_SET_UP = SchedulerConfig(UNBOUNDED)
SECONDS = 30.0


def again(simulation: Simulation, period: float, submit: Callable[[], object]) -> None:
    """Submit every so many seconds until ``SECONDS``."""

    def next_one() -> None:
        submit()
        if simulation.now + period < SECONDS:
            simulation.at(simulation.now + period, next_one)

    simulation.at(2.0371, next_one)


def flood(simulation: Simulation, outstanding: int, submit: Callable[[], int]) -> None:
    """Keep so many requests in the queue until ``SECONDS``."""
    flooding: set[int] = set()

    def one() -> None:
        flooding.add(submit())

    for _ in range(outstanding):
        simulation.at(0.0, one)

    def ended(stream_id: int) -> None:
        if stream_id in flooding and simulation.now < SECONDS:
            one()

    simulation.on_end = ended


def victims_ttft(config: SchedulerConfig, flood_of: tuple[int, int] | None) -> list[float]:
    """Times to first token of a tenant that sends a short request each second, beside another that keeps a
    hundred of the given prompt and answer lengths in the queue.
    """
    simulation = Simulation(config)
    short: list[int] = []
    again(simulation, 1.0, lambda: short.append(simulation.submit(128, 16, tenant="short")))
    if flood_of is not None:
        length, output = flood_of
        flood(simulation, 100, lambda: simulation.submit(length, output, tenant="flood"))
    simulation.run(SECONDS + 5)
    lives = [simulation.lives[stream_id] for stream_id in short]
    assert all(life.first_token for life in lives), "somebody waits for ever"
    return [life.ttft for life in lives]


@pytest.mark.parametrize(("flood_of", "times"), [((8000, 64), 5), ((2000, 1000), 5), ((900, 400), 7)])
def test_a_flooding_tenant_leaves_another_its_time_to_first_token(
    flood_of: tuple[int, int], times: float
) -> None:
    """Item 9: maximal prompts, and prompts with long answers: five times the quiet p95 at most. Seven where
    all seats decode, so that prompts get a third of a step, and memory is short all the time.
    """
    quiet = percentile(victims_ttft(AS_SET_UP, None), 0.95)
    beside = percentile(victims_ttft(AS_SET_UP, flood_of), 0.95)
    assert beside <= times * quiet


def test_without_bounded_steps_it_would_not_hold() -> None:
    """The test above can fail: with all of the budget for prompts it does."""
    config = replace(AS_SET_UP, share=WholeBudget())
    quiet = percentile(victims_ttft(config, None), 0.95)
    assert percentile(victims_ttft(config, (8000, 64)), 0.95) > 5 * quiet


def test_the_share_is_what_keeps_it() -> None:
    """The same without turns by tenant: the test above can fail."""
    config = replace(AS_SET_UP, order=FirstComeFirstServed())
    with pytest.raises(AssertionError, match="waits for ever"):
        victims_ttft(config, (8000, 64))


def test_two_tenants_share_by_tokens() -> None:
    """Both flood, one with prompts four times as long: over half a minute each gets about half of the
    tokens.
    """
    simulation = Simulation()
    for tenant, length in (("long", 2000), ("short", 500)):
        for _ in range(400):
            simulation.at(0.0, partial(simulation.submit, length, 8, tenant=tenant))
    simulation.run(SECONDS)
    done = {"long": 0, "short": 0}
    for life in simulation.lives.values():
        if life.first_token:
            done[life.request.submission.tenant] += len(life.request.submission.prompt)
    assert 0.4 < done["long"] / sum(done.values()) < 0.6


def test_a_low_request_under_a_steady_stream_of_high_ones_starts_in_time() -> None:
    """Item 10: more high requests than can be served, without end. With 5 s a class, two classes apart, the
    low one starts after 10 s and the turns of one tenant: those that run have to end, which takes under 5 s.
    """
    started = {}
    for ageing_s in (0.0, 5.0):
        limits = replace(CPU_LIKE, max_num_seqs=8)
        simulation = Simulation(SchedulerConfig(UNBOUNDED, order=StrictPriority(ageing_s)), limits)
        again(simulation, 0.05, lambda: simulation.submit(100, 40, priority=2))  # noqa: B023
        low: list[int] = []
        simulation.at(3.0, lambda: low.append(simulation.submit(100, 40)))  # noqa: B023
        simulation.run(SECONDS)
        started[ageing_s] = simulation.lives[low[0]].started
    assert started[0.0] == 0.0
    assert 3.0 + 2 * 5.0 <= started[5.0] <= 3.0 + 2 * 5.0 + 5.0


def test_strict_priority_starts_first_and_a_class_keeps_its_order() -> None:
    """Item 10: twenty low ones wait, then come three high ones: these are first, and both in their order."""
    simulation = Simulation(limits=replace(CPU_LIKE, max_num_seqs=2))
    for _ in range(2):
        simulation.at(0.0, lambda: simulation.submit(100, 100))
    for i in range(20):
        simulation.at(0.1 + i * 0.01, lambda: simulation.submit(50, 4))
    for i in range(3):
        simulation.at(0.5 + i * 0.01, lambda: simulation.submit(50, 4, priority=1))
    simulation.run()
    numbers = {life.request.lead.number: stream_id for stream_id, life in simulation.lives.items()}
    order = [numbers[new.sequence_id] for _, _, plan in simulation.steps for new in plan.new_sequences]
    assert order == [0, 1, 22, 23, 24, *range(2, 22)]


def test_a_big_prompt_is_not_overtaken_for_ever() -> None:
    """Item 2: one that needs half of the memory, and without end small ones of other tenants that fill it."""
    limits = replace(CPU_LIKE, num_blocks=256)
    simulation = Simulation(limits=limits)
    for tenant in range(8):
        again(simulation, 0.4, partial(simulation.submit, 400, 60, tenant=f"small{tenant}"))
    big: list[int] = []
    simulation.at(5.0, lambda: big.append(simulation.submit(4000, 4, tenant="big")))
    simulation.run(SECONDS)
    life = simulation.lives[big[0]]
    assert life.first_token
    assert life.ttft < 15.0


@pytest.mark.parametrize("victims", [LatestOfLowestPriority(), CheapestOfLowestPriority()])
def test_more_memory_wanted_than_there_is(victims: object) -> None:
    """Item 5: answers as long as prompts, and room for a third of them. All end, none is preempted often."""
    simulation = Simulation(
        SchedulerConfig(UNBOUNDED, victims=victims),  # type: ignore[arg-type]
        replace(CPU_LIKE, num_blocks=512, max_num_seqs=48),
    )
    for i in range(96):
        length = 200 if i % 3 else 900
        simulation.at(0.02 * i, partial(simulation.submit, length, 500))
    simulation.run()
    assert all(life.ended for life in simulation.lives.values())
    totals = simulation.scheduler.state.totals
    assert totals.preemptions > 0
    assert max(life.request.lead.preemptions for life in simulation.lives.values()) <= 6
    assert totals.recomputed_tokens < 0.5 * totals.computed_tokens


def test_a_step_costs_the_same_at_ten_thousand_queued_over_a_thousand_tenants() -> None:
    """By the clock, generously: this thread's time in ``plan`` and ``apply``, seats full and changing."""

    def median_us(queued: int, tenants: int) -> float:
        simulation = Simulation(limits=replace(CPU_LIKE, max_num_seqs=16))
        for i in range(16 + queued):
            simulation.submit(32, 8, tenant=f"tenant{i % tenants}")
        times: list[int] = []
        plan, apply = simulation.scheduler.plan, simulation.scheduler.apply

        def timed(call: Callable[..., object]) -> Callable[..., object]:
            def run(*arguments: object) -> object:
                start = time.thread_time_ns()
                result = call(*arguments)
                times.append(time.thread_time_ns() - start)
                return result

            return run

        simulation.scheduler.plan = timed(plan)  # type: ignore[method-assign, assignment]
        simulation.scheduler.apply = timed(apply)  # type: ignore[method-assign, assignment]
        simulation.run(until=2.0)
        assert simulation.scheduler.state.totals.finished > 20
        return sorted(times)[len(times) // 2] / 1000

    few, many = median_us(200, 10), median_us(10_000, 1000)
    assert many < 3 * few + 200
