"""How each goal of speed is measured: a function a goal, which gives figures and says what is short of it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from event_streams import Looks, Stream, one_by_one, random_ids, stream

from hundredfold.bench.alone import alone
from hundredfold.bench.arrivals import Arrival
from hundredfold.bench.neighbours import ask_neighbours
from hundredfold.bench.plan import LoadPlan
from hundredfold.bench.report import Report
from hundredfold.bench.serve import measure
from hundredfold.bench.stack import MAKE_UP, RunningStack, StackOptions, running_stack
from hundredfold.client import AsyncClient

HERE = Path(__file__).parent
INPUT_LEN, OUTPUT_LEN = 64, 128
SAY = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Scale:
    """How large the loads are; the small one only shows that the commands work."""

    batches: tuple[int, ...] = (64, 128, 256)
    poisson_requests: int = 300
    decodes: int = 32
    decode_len: int = 320
    prompt_len: int = 4000
    prefix_len: int = 2000
    tails: int = 5
    pairs: int = 10
    profile_streams: int = 256
    output_len: int = OUTPUT_LEN


FULL = Scale()
QUICK = Scale((4, 8), 12, 4, 60, 500, 300, 2, 2, 8, 16)


@dataclass(slots=True)
class Found:
    """What a step found."""

    figures: dict[str, Any] = field(default_factory=dict)
    short: list[str] = field(default_factory=list)
    """Goals that were missed; empty when all is as it should be."""

    def hold(self, what: str, good: bool) -> None:
        """Note a goal that was missed."""
        if not good:
            self.short.append(what)


def door(model: str, scale: Scale, say: SAY) -> Found:
    """Through the door by the worker alone, in turns: door, alone, door, for each number of requests."""
    found = Found()
    with _serving(model) as stack:
        _load(stack, 8, 8, 16)
        for batch in scale.batches:
            with _looks(stack) as looks:
                first = _load(stack, batch, batch, scale.output_len)
            by_itself = alone(model, batch, scale.output_len)
            again = _load(stack, batch, batch, scale.output_len)
            through = (first.output_tokens_per_s + again.output_tokens_per_s) / 2
            delay = max(looks.delay_s, default=0.0)
            found.figures[str(batch)] = {
                "door": [first.output_tokens_per_s, again.output_tokens_per_s],
                "alone": by_itself,
                "ratio": through / by_itself,
                "delta_delay_ms": 1e3 * delay,
                "itl_p50_ms": first.itl_ms.p50,
                "itl_p99_ms": first.itl_ms.p99,
                "ttft_p50_ms": first.ttft_ms.p50,
            }
            say(
                f"{batch} at once: door {through:,.0f}, alone {by_itself:,.0f} tokens/s: "
                f"{through / by_itself:.3f}; tokens waited for each other at most {1e3 * delay:.0f} ms"
            )
            found.hold(
                f"{batch} at once: {through / by_itself:.3f} of the worker alone, wanted 0.9",
                through >= 0.9 * by_itself,
            )
    return found


def poisson(model: str, scale: Scale, say: SAY) -> Found:
    """Time to the first token under Poisson arrivals at 70 % of what a closed loop reaches."""
    found = Found()
    most = scale.batches[-1]
    with _serving(model) as stack:
        idle = [one.ttft_s for one in one_by_one(stack.address, _prompts(stack, 10, INPUT_LEN), 8)][2:]
        full = _load(stack, most, most, scale.output_len)
        rate = 0.7 * full.output_tokens_per_s / scale.output_len
        say(f"capacity {full.output_tokens_per_s:,.0f} tokens/s; {rate:.2f} requests/s are 70 % of it")
        with _looks(stack) as looks:
            plan = LoadPlan(
                stack.address,
                scale.poisson_requests,
                INPUT_LEN,
                scale.output_len,
                rate=rate,
                arrival=Arrival.POISSON,
                client_processes=1,
            )
            report = measure(plan, lambda _phase, _sent: None)
    step_ms, idle_ms = 1e3 * looks.median_step_s, 1e3 * median(idle)
    allowed = idle_ms + 4 * step_ms
    found.figures = {
        "capacity_tokens_per_s": full.output_tokens_per_s, "rate": rate, "idle_ttft_ms": idle_ms,
        "median_step_ms": step_ms, "ttft_p50_ms": report.ttft_ms.p50, "ttft_p90_ms": report.ttft_ms.p90,
        "ttft_p99_ms": report.ttft_ms.p99, "allowed_ms": allowed, "failed": report.failed,
        "queue_p99_ms": report.server_queue_ms.p99, "warnings": list(report.warnings),
        "output_tokens_per_s": report.output_tokens_per_s,
    }  # fmt: skip
    say(
        f"first token: p50 {report.ttft_ms.p50:.0f}, p99 {report.ttft_ms.p99:.0f} ms; idle {idle_ms:.0f} ms, "
        f"median step {step_ms:.0f} ms, so {allowed:.0f} are allowed"
    )
    found.hold(
        f"p99 {report.ttft_ms.p99:.0f} ms, allowed {allowed:.0f}", (report.ttft_ms.p99 or 1e9) <= allowed
    )
    found.hold(f"{report.failed} requests failed", not report.failed)
    return found


def long_prompt(model: str, scale: Scale, say: SAY) -> Found:
    """A long prompt among decodes, as it is by default and with ``step_target_ms`` at twice a decode step."""
    found = Found()
    target = None
    for name in ("by default", "with step_target_ms"):
        at_once = {"tokenizer.max_deltas_per_s": "1000000", "tokenizer.max_delta_delay_s": "0"}
        wanted = {} if target is None else {"scheduler.step_target_ms": f"{target:.0f}"}
        with _serving(model, at_once | wanted) as stack:
            prompts, vocab_size = _prompts(stack, scale.decodes, INPUT_LEN), _vocab(stack)
            long = random_ids(99, scale.prompt_len, vocab_size)
            figures = asyncio.run(_among_decodes(stack.address, prompts, long, scale.decode_len))
        found.figures[name] = figures | {"step_target_ms": target}
        target = 2 * figures["median_step_ms"]
        say(
            f"{name}: step {figures['median_step_ms']:.0f} ms, longest beside the prompt "
            f"{figures['longest_step_ms']:.0f} ms ({figures['stretch']:.2f}); the prompt's first token after "
            f"{figures['ttft_ms']:.0f} ms, {figures['decodes_at_its_first_token']} still decoding then"
        )
    found.hold(f"a step of {figures['stretch']:.2f} x the median, wanted 3", figures["stretch"] <= 3)
    found.hold("the decodes ended before the prompt was through", figures["decodes_at_its_first_token"] > 0)
    return found


async def _among_decodes(
    address: str, prompts: list[list[int]], long_prompt: list[int], length: int
) -> dict[str, float]:
    begun = asyncio.Event()
    started: set[int] = set()

    def heard(one: Stream) -> None:
        if one.tokens >= length // 4:  # an event may bring several
            started.add(id(one))
            if len(started) == len(prompts):
                begun.set()

    async with AsyncClient(address) as client:
        tasks = [asyncio.create_task(stream(client, ids, length, heard=heard)) for ids in prompts]
        await begun.wait()
        long = await stream(client, long_prompt, 4)
        decodes = list(await asyncio.gather(*tasks))
    still = sum(one.arrivals[-1] > long.arrivals[0] for one in decodes)
    settled = max(one.arrivals[4] for one in decodes)  # their own prompts are through
    before = np.concatenate([one.gaps_s(settled, long.sent) for one in decodes])
    beside = np.concatenate([one.gaps_beside_s(long.sent, long.arrivals[0]) for one in decodes])
    return {
        "median_step_ms": 1e3 * float(np.median(before)),
        "longest_before_ms": 1e3 * float(before.max()),
        "longest_step_ms": 1e3 * float(beside.max()),
        "p99_beside_ms": 1e3 * float(np.percentile(beside, 99)),
        "median_beside_ms": 1e3 * float(np.median(beside)),
        "stretch": float(beside.max() / np.median(before)),
        "ttft_ms": 1e3 * long.ttft_s,
        "decodes_at_its_first_token": still,
    }


def prefix(model: str, scale: Scale, say: SAY) -> Found:
    """Time to the first token with a long prefix that is new, and with the same prefix again."""
    found = Found()
    with _serving(model) as stack:
        one_by_one(stack.address, _prompts(stack, 2, INPUT_LEN), 4)
        rounds = []
        for seed in (1, 2, 3):
            shared = random_ids(seed, scale.prefix_len, _vocab(stack))
            tails = [random_ids(100 * seed + tail, 16, _vocab(stack)) for tail in range(scale.tails)]
            times = [one.ttft_s for one in one_by_one(stack.address, [[*shared, *tail] for tail in tails], 4)]
            rounds.append((times[0], median(times[1:])))
    new, again = (1e3 * median(times) for times in zip(*rounds, strict=True))
    found.figures = {"new_ms": new, "again_ms": again, "ratio": new / again, "rounds": rounds}
    say(
        f"first token after {scale.prefix_len} + 16 tokens: {new:.0f} ms new, {again:.0f} ms again: "
        f"{new / again:.1f} times"
    )
    found.hold(f"{new / again:.1f} times faster, wanted 10", new >= 10 * again)
    return found


def speculation(model: str, scale: Scale, say: SAY) -> Found:
    """N-gram drafts at one request at a time: gain where there is much to copy, cost where there is not."""
    found = Found()
    with _serving(model) as plain, _serving(model, {"worker.speculative": "ngram"}) as drafting:
        sides = {"plain": plain, "drafting": drafting}
        for stack in sides.values():
            _load(stack, 1, 1, 16, phrase=8)
        copies: dict[str, list[float]] = {"plain": [], "drafting": []}
        cpu: dict[str, list[float]] = {"plain": [], "drafting": []}
        for number in range(scale.pairs):
            for name in sorted(sides, reverse=bool(number % 2)):
                prompt = random_ids(number, 8, _vocab(plain)) * 8
                copied = one_by_one(sides[name].address, [prompt], scale.output_len)[0]
                copies[name].append(copied.arrivals[-1] - copied.sent)
                cpu[name].append(_cpu_per_token(sides[name], number, scale.output_len))
    gains = [
        plain_s / drafting_s for plain_s, drafting_s in zip(copies["plain"], copies["drafting"], strict=True)
    ]
    costs = [b / a - 1 for a, b in zip(cpu["plain"], cpu["drafting"], strict=True)]
    error = float(np.std(costs, ddof=1) / len(costs) ** 0.5)
    found.figures = {
        "gain": median(gains), "gains": gains, "cost": median(costs), "mean_cost": float(np.mean(costs)),
        "cost_error": error, "costs": costs, "seconds": copies, "cpu_s_per_token": cpu,
    }  # fmt: skip
    say(
        f"much to copy: {median(gains):.2f} times as fast ({min(gains):.2f} to {max(gains):.2f}); nothing: "
        f"{median(costs):+.1%} processor time a token (mean {np.mean(costs):+.1%} ± {error:.1%})"
    )
    found.hold(
        f"{median(gains):.2f} times as fast where there is much to copy, wanted 1.8", median(gains) >= 1.8
    )
    found.hold(
        f"{median(costs):+.1%} processor time where there is nothing, allowed 3 %", median(costs) <= 0.03
    )
    return found


def profile(model: str, scale: Scale, say: SAY) -> Found:
    """What scheduler and delivery take beside the real worker at full load."""
    command = [sys.executable, str(HERE / "profile_stack.py"), "--real", "--model", model]
    command += ["--streams", str(scale.profile_streams), "--output-len", str(scale.output_len // 2)]
    done = subprocess.run(
        [*command, "--worker-flag=--kv-cache-dtype=int8"], capture_output=True, text=True, check=False
    )
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.strip()}
    if done.returncode or "delivery" not in rows:
        return Found({}, [(done.stderr.strip().splitlines() or ["no word"])[-1]])
    step_ms, share = float(rows["scheduler"][2]), float(rows["delivery"][4].rstrip("%"))
    say(done.stdout.strip())
    found = Found({"scheduler_ms_per_step": step_ms, "delivery_share": share / 100, "table": done.stdout})
    found.hold(f"the scheduler takes {step_ms:.2f} ms a step, allowed 1", step_ms <= 1)
    found.hold(f"delivery takes {share:.1f} % of the machine, allowed 10", share < 10)
    return found


@contextmanager
def _serving(model: str, settings: Mapping[str, str] = MAKE_UP) -> Iterator[RunningStack]:
    with running_stack(StackOptions(model, {**MAKE_UP, **settings})) as stack:
        yield stack


def _load(stack: RunningStack, at_once: int, requests: int, length: int, phrase: int = 0) -> Report:
    plan = LoadPlan(
        stack.address, requests, INPUT_LEN, length, concurrency=at_once, phrase=phrase, client_processes=1
    )
    report = measure(plan, lambda _phase, _sent: None)
    if report.failed:
        raise RuntimeError(f"{report.failed} of {report.requests} requests failed: {report.failure_examples}")
    return report


def _cpu_per_token(stack: RunningStack, number: int, length: int) -> float:
    """Drawn at temperature 1 after random tokens: little is said twice."""
    before = stack.cpu_seconds()
    ids = random_ids(1000 + number, INPUT_LEN, _vocab(stack))
    made = one_by_one(stack.address, [ids], length, draw=True)[0]
    return (stack.cpu_seconds() - before) / made.tokens


def _prompts(stack: RunningStack, count: int, length: int) -> list[list[int]]:
    return [random_ids(10_000 + number, length, _vocab(stack)) for number in range(count)]


def _vocab(stack: RunningStack) -> int:
    return next(info.model.vocab_size for info in ask_neighbours(stack.address).of("tokenizer"))


def _looks(stack: RunningStack) -> Looks:
    return Looks(stack.address, ask_neighbours(stack.address).of("scheduler")[0].address)
