"""Measures what `bench check` compares: short runs, in turns, of one model on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hundredfold.bench.alone import AloneError, alone
from hundredfold.bench.check import CheckError
from hundredfold.bench.ladder.stages import FLOAT
from hundredfold.bench.plan import LoadPlan, PlanError
from hundredfold.bench.processes import ClientProcessError
from hundredfold.bench.serve import WarmupError, measure
from hundredfold.bench.server import ServerError
from hundredfold.bench.stack import MAKE_UP, StackError, StackOptions, known_settings, running_stack

MANY, OUTPUT_LEN = 32, 64
SINGLES = 2

PAIRS: Mapping[str, tuple[str, str]] = {
    f"{MANY} at once by one at a time": ("many", "single"),
    "through the door by the worker alone": ("many", "offline"),
    "the default by products of floats": ("many", "float"),
}


def measure_round(model: str, say: Callable[[str], None]) -> dict[str, float]:
    """Speeds by name, in output tokens a second. Raises CheckError."""
    try:
        say("the default, through the door")
        with running_stack(StackOptions(model, MAKE_UP)) as stack:
            single = _speed(stack.address, 1, SINGLES)
            many = _speed(stack.address, MANY, MANY)
        say("products of floats, through the door")
        known = known_settings("worker")
        floats = {name: value for name, value in FLOAT.items() if name.partition(".")[2] in known}
        with running_stack(StackOptions(model, floats)) as stack:
            slow = _speed(stack.address, MANY, MANY)
        say("the worker alone")
        offline = alone(model, MANY, OUTPUT_LEN)
    except (StackError, ServerError, WarmupError, ClientProcessError, PlanError, AloneError) as error:
        raise CheckError(str(error)) from error
    return {"single": single, "many": many, "float": slow, "offline": offline}


def _speed(address: str, concurrency: int, num_requests: int) -> float:
    """Warmed up, then measured. Raises CheckError when a request fails, and what ``measure`` raises."""
    plan = LoadPlan(
        address,
        num_requests=num_requests,
        output_len=OUTPUT_LEN,
        concurrency=concurrency,
        warmup=min(concurrency, 8),
        client_processes=1,
    )
    report = measure(plan, lambda _phase, _sent: None)
    if report.failed:
        raise CheckError(f"{report.failed} of {report.requests} requests failed: {report.failure_examples}")
    return report.output_tokens_per_s
