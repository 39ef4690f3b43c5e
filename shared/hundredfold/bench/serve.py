"""Measures a running server through its door: prompts, client processes, warm-up, measurement, report."""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Callable, Sequence

from hundredfold.bench.arrivals import arrival_times
from hundredfold.bench.child import Answer, Warmup
from hundredfold.bench.client import ClientLoad, ClientSetup
from hundredfold.bench.plan import WARMUP_OUTPUT_LEN, LoadPlan, PlanError
from hundredfold.bench.processes import ClientProcesses
from hundredfold.bench.prompts import PromptSource, RandomPrompts, TextPrompts
from hundredfold.bench.report import Environment, Number, Report, RequestRecord, summarize
from hundredfold.bench.server import ServerError, ServerFacts, ask_environment, ask_facts
from hundredfold.rpc import run_loop

MAX_MESSAGE_BYTES = 64 * 2**20
COMFORTABLE_SHARE = 0.6
"""Of a core: what one client process may use before `auto` starts another."""
BUSY_SHARE = 0.8
"""Of a core: from here on a client process may be what limits the figures."""
LATE_S = 0.02
"""Lateness of the client's event loop that a reader has to know of."""


class WarmupError(Exception):
    """No warm-up request succeeded, so there is nothing to measure."""


def measure(plan: LoadPlan, progress: Callable[[str, int], None]) -> Report:
    """Run the plan and return its report; `progress` hears the phase and how many requests were sent.

    Raises PlanError, ServerError, WarmupError, ClientProcessError, and ValueError for a bad prompt file.
    """
    progress("connecting", 0)
    facts = run_loop(ask_facts(plan.address, MAX_MESSAGE_BYTES))
    prompts = _prompts(plan, facts)
    setup = ClientSetup(
        address=plan.address,
        prompts=prompts,
        temperature=plan.temperature,
        seed=plan.seed,
        cache_salt=f"bench-{uuid.uuid4().hex}",
        timeout_s=plan.timeout_s,
        max_message_bytes=MAX_MESSAGE_BYTES,
        beam_width=plan.beam_width,
    )
    warnings: list[str] = []
    with ClientProcesses(setup) as processes:
        processes.start(1)
        count = plan.client_processes or 1
        if plan.warmup:
            progress("warming up", 0)
            answer = processes.warmup(
                Warmup(plan.warmup, plan.parallel, min(plan.output_len, WARMUP_OUTPUT_LEN))
            )
            warnings += _judge_warmup(answer.records)
            if plan.client_processes is None and answer.load is not None:
                count = wanted_processes(answer.load, os.cpu_count() or 1)
        processes.start(count)
        arrivals = (
            arrival_times(plan.arrival, plan.rate, plan.num_requests, plan.seed).tolist()
            if plan.arrival is not None
            else None
        )
        answers = processes.measure(
            plan.num_requests,
            plan.output_len,
            concurrency=plan.concurrency,
            arrivals=arrivals,
            tick=lambda sent: progress("measuring", sent),
        )
    records = [record for answer in answers for record in answer.records]
    environment = _environment(plan.address, warnings)
    warnings += _judge_records(records, plan.output_len)
    client = judge_client(answers, warnings)
    return summarize(
        records,
        mode="serve",
        environment=environment,
        parameters=plan.parameters(),
        client=client,
        repeated_prompts_share=prompts.repeated_share(plan.num_requests),
        warnings=warnings,
    )


def _prompts(plan: LoadPlan, facts: ServerFacts) -> PromptSource:
    if plan.prompts is not None:
        return TextPrompts.read(plan.prompts)
    total = plan.input_len + plan.output_len
    if facts.max_model_len is not None and total > facts.max_model_len:
        raise PlanError(
            f"--input-len {plan.input_len} + --output-len {plan.output_len} is {total}, "
            f"the model takes at most {facts.max_model_len}"
        )
    return RandomPrompts.draw(facts.ordinary_ids, plan.input_len, plan.shared_prefix, plan.seed, plan.phrase)


def _environment(address: str, warnings: list[str]) -> Environment:
    """Ask the server once more; a server that no longer answers costs the memory figures, not the run."""
    try:
        return run_loop(ask_environment(address, MAX_MESSAGE_BYTES))
    except ServerError as failure:
        warnings.append(f"memory, device and versions are missing: {failure}")
        return Environment()


def wanted_processes(load: ClientLoad, cores: int) -> int:
    """Return how many client processes a run needs whose warm-up made one of them this busy."""
    return min(cores, max(1, math.ceil(load.loop_share / COMFORTABLE_SHARE)))


def _judge_warmup(records: Sequence[RequestRecord]) -> list[str]:
    failed = [record for record in records if record.error is not None]
    if failed and len(failed) == len(records):
        raise WarmupError(f"all {len(failed)} warm-up requests failed: {failed[0].error}: {failed[0].detail}")
    return [f"{len(failed)} of {len(records)} warm-up requests failed: {failed[0].error}"] if failed else []


def _judge_records(records: Sequence[RequestRecord], output_len: int) -> list[str]:
    short = sum(record.error is None and record.completion_tokens != output_len for record in records)
    return [f"{short} requests ended with another length than --output-len {output_len}"] if short else []


def judge_client(answers: Sequence[Answer], warnings: list[str]) -> dict[str, Number]:
    """Describe the load tool's own work and warn where it may have limited the figures."""
    loads = [answer.load for answer in answers if answer.load is not None]
    loop_share = max((load.loop_share for load in loads), default=0.0)
    lag_s = max((load.loop_lag_p99_s for load in loads), default=0.0)
    if loop_share > BUSY_SHARE:
        warnings.append(
            f"the load tool was busy: {loop_share:.0%} of a core in one client process, so the figures "
            f"may be its limit, not the server's; give --client-processes {len(loads) + 1} or more"
        )
    elif lag_s > LATE_S:
        warnings.append(
            f"cores were short: the client's clock readings were up to {lag_s * 1e3:.0f} ms late (p99)"
        )
    return {
        "processes": len(loads),
        "cpu_share": sum(load.cpu_share for load in loads),
        "busiest_loop_share": loop_share,
        "loop_lag_p99_ms": lag_s * 1e3,
    }
