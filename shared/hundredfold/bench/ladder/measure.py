"""Measures one load on a running stack, and what it made the machine do."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from hundredfold.bench.ceilings import Ceilings
from hundredfold.bench.ladder.rows import Row, Work
from hundredfold.bench.ladder.stages import Load, Stage
from hundredfold.bench.neighbours import Loads, Neighbours, ask_loads, ask_neighbours, output_tokens
from hundredfold.bench.plan import LoadPlan
from hundredfold.bench.report import Report
from hundredfold.bench.serve import measure
from hundredfold.bench.stack import RunningStack
from hundredfold.v1.control_pb2 import RuntimeInfo

WARMUP_REQUESTS, WARMUP_LEN = 16, 16
REQUEST_LIMIT_S = 300.0
TICK_S = 1.0
_IDLE_LIMIT_S = 10.0

Tick = Callable[[int], None]
"""Hears how many tokens have come out so far."""


def measure_row(
    stack: RunningStack,
    stage: Stage,
    load: Load,
    settings: Mapping[str, str],
    arithmetic: str,
    ceilings: Ceilings | None,
    tick: Tick,
) -> Row:
    """Warm up, measure, and put the figures together. Raises what ``bench.serve.measure`` raises."""
    neighbours = ask_neighbours(stack.address)
    measure(_warmup(stack.address, load), lambda _phase, _sent: None)
    before, cpu = _settled(neighbours), stack.cpu_seconds()
    report = measure(plan(stack.address, load), _ticker(neighbours, before, tick))
    after = _settled(neighbours)
    work = work_of(neighbours, before, after, load, report.duration_s, stack.cpu_seconds() - cpu)
    return row_of(stage, load, settings, arithmetic, ceilings, report, work)


def plan(address: str, load: Load) -> LoadPlan:
    """The measured part of a load."""
    return LoadPlan(
        address,
        num_requests=load.num_requests,
        input_len=load.input_len,
        output_len=load.output_len,
        concurrency=load.concurrency,
        phrase=load.phrase,
        timeout_s=REQUEST_LIMIT_S,
        client_processes=1,
    )


def work_of(
    neighbours: Neighbours, before: Loads, after: Loads, load: Load, seconds: float, cpu_seconds: float
) -> Work:
    """What the workers counted between two looks, in bytes and operations."""

    def counted(name: str) -> int:
        return after.worker_total(name) - before.worker_total(name)

    steps, tokens = counted("steps"), counted("output_tokens")
    info = neighbours.runtime
    runtime = info.runtime if info is not None else RuntimeInfo()
    advance = max(1.0, tokens / steps) if load.concurrency == 1 and steps else 1.0
    cached = load.num_requests * load.output_len * (load.input_len + load.output_len / 2) / advance
    token_bytes = runtime.bytes_per_block / runtime.block_size if runtime.block_size else 0.0
    products = runtime.layer_weights * counted("computed_tokens") + runtime.output_weights * tokens
    return Work(
        seconds=seconds,
        read_bytes=steps * runtime.weight_bytes + cached * token_bytes,
        operations=2.0 * products,
        cpu_seconds=cpu_seconds,
        steps=steps,
        tokens=tokens,
    )


def row_of(
    stage: Stage,
    load: Load,
    settings: Mapping[str, str],
    arithmetic: str,
    ceilings: Ceilings | None,
    report: Report,
    work: Work,
) -> Row:
    """A report and the work behind it as a row; one without a success has the reason."""
    if report.failed == report.requests:
        why = (list(report.failure_examples) or ["every request failed"])[0]
        return Row(stage.key, stage.title, load.title, settings, reason=why)
    warnings = list(report.warnings)
    if report.failed:
        warnings.append(f"{report.failed} of {report.requests} requests failed")
    return Row(
        stage=stage.key,
        title=stage.title,
        load=load.title,
        settings=settings,
        precision=report.precision,
        tokens_per_s=report.output_tokens_per_s,
        ms_per_token=report.tpot_ms.p50,
        ttft_ms=report.ttft_ms.p50,
        ttft_p99_ms=report.ttft_ms.p99,
        peak_memory_bytes=report.peak_memory_bytes,
        read_share=work.read_share(ceilings),
        operations_share=work.operations_share(ceilings, arithmetic),
        arithmetic=arithmetic,
        cpu_ms_per_token=(
            1e3 * work.cpu_seconds / report.output_tokens
            if work.cpu_seconds is not None and report.output_tokens
            else None
        ),
        tokens_per_step=work.tokens / work.steps if work.steps else None,
        warnings=warnings,
    )


def _warmup(address: str, load: Load) -> LoadPlan:
    count = min(load.concurrency, WARMUP_REQUESTS)
    return LoadPlan(
        address,
        num_requests=count,
        input_len=load.input_len,
        output_len=min(load.output_len, WARMUP_LEN),
        concurrency=count,
        seed=1,
        phrase=load.phrase,
        timeout_s=REQUEST_LIMIT_S,
        client_processes=1,
    )


def _settled(neighbours: Neighbours) -> Loads:
    """A look at the counters once nothing is computed: a step is still under way at the last token."""
    deadline = time.monotonic() + _IDLE_LIMIT_S
    while True:
        loads = ask_loads(neighbours)
        busy = loads.scheduler is not None and loads.scheduler.running + loads.scheduler.waiting
        if not busy or time.monotonic() > deadline:
            return loads
        time.sleep(0.05)


def _ticker(neighbours: Neighbours, before: Loads, tick: Tick) -> Callable[[str, int], None]:
    """Progress of ``measure`` in tokens instead of requests, looked at once a second."""
    start, last = before.scheduler_total("output_tokens"), [0.0]

    def heard(_phase: str, _sent: int) -> None:
        now = time.monotonic()
        if now - last[0] >= TICK_S:
            last[0] = now
            tokens = output_tokens(neighbours)
            if tokens is not None:
                tick(tokens - start)

    return heard
