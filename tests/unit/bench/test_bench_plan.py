"""Plans: presets, defaults, and the messages for what makes no sense."""

import pytest

from hundredfold.bench.arrivals import Arrival
from hundredfold.bench.plan import PRESETS, LoadPlan, PlanError, make_plan


def test_default_is_a_closed_loop_of_20():
    plan = make_plan(None, {})
    assert (plan.concurrency, plan.rate, plan.arrival) == (20, None, None)
    assert plan.num_requests == 80
    assert plan.warmup == 20


def test_presets_are_the_three_that_people_ask_for():
    assert set(PRESETS) == {"single", "concurrent-20", "long-2048x2048"}
    assert make_plan("single", {}).concurrency == 1
    assert make_plan("concurrent-20", {}).concurrency == 20
    long = make_plan("long-2048x2048", {})
    assert (long.input_len, long.output_len) == (2048, 2048)


def test_a_flag_wins_over_the_preset():
    plan = make_plan("single", {"num_requests": 3, "output_len": 16, "seed": None})
    assert (plan.concurrency, plan.num_requests, plan.output_len, plan.seed) == (1, 3, 16, 0)


def test_rate_makes_an_open_loop_even_with_a_preset():
    plan = make_plan("concurrent-20", {"rate": 4.0})
    assert (plan.concurrency, plan.rate, plan.arrival) == (None, 4.0, Arrival.POISSON)
    assert make_plan(None, {"arrival": "burst"}).arrival is Arrival.BURST


def test_requests_follow_the_concurrency():
    assert make_plan(None, {"concurrency": 64}).num_requests == 256
    assert make_plan(None, {"concurrency": 1}).num_requests == 8


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"concurrency": 0}, "--concurrency is 0, it has to be from 1 to 10000"),
        ({"concurrency": -1}, "--concurrency is -1, it has to be from 1 to 10000"),
        ({"concurrency": 1_000_000}, "--concurrency is 1000000, it has to be from 1 to 10000"),
        ({"concurrency": 4, "rate": 2.0}, "--rate"),
        ({"arrival": "poisson"}, "--arrival poisson needs --rate"),
        ({"rate": float("nan")}, "--rate is nan"),
        ({"rate": 0.0}, "--rate"),
        ({"num_requests": 0}, "--num-requests"),
        ({"input_len": 10, "shared_prefix": 11}, "--shared-prefix is 11, it has to be from 0 to 10"),
        ({"temperature": float("inf")}, "--temperature"),
        ({"seed": -1}, "--seed"),
        ({"timeout_s": 0.0}, "--timeout"),
        ({"client_processes": 0}, "--client-processes"),
    ],
)
def test_what_makes_no_sense_is_refused_by_flag_value_and_limit(given, named):
    with pytest.raises(PlanError, match=named):
        make_plan(None, given)


def test_parameters_are_named_like_the_flags():
    parameters = LoadPlan(concurrency=2).parameters()
    assert parameters["num-requests"] == 80
    assert parameters["timeout"] == 600
    assert parameters["rate"] is None
