"""Settings of order and pace reach the core of a service that runs, and are told to who asks."""

from __future__ import annotations

import asyncio
import time
from itertools import accumulate

from hundredfold_scheduler.core.policy import FirstComeFirstServed, LatestOfLowestPriority
from hundredfold_scheduler.core.step import StepPlan, StepResult
from support.grpc_worker import GrpcWorker
from support.pace import in_time
from support.scheduler_stack import scheduler_stack


async def test_an_idle_engine_gathers_and_its_timer_ends_the_wait() -> None:
    """Five requests, nothing else comes in: they start together when 300 ms are over."""
    async with scheduler_stack(batch_timeout_ms=300) as stack:
        replica = await stack.replica()
        start = time.monotonic()
        told = [await replica.submit(i, [5 + i] * 10, 3) for i in range(5)]
        for answer in told:
            await answer.wait()
        assert time.monotonic() - start >= 0.3
        finished = [answer.finished for answer in told]
        assert all(end is not None and end.account.queue_us >= 200_000 for end in finished)
        steps = stack.service.core.state.totals.steps
        in_time(steps, 6, "the steps of five that start together, told within 300 ms,")
        await replica.close()


async def test_a_cancel_while_it_gathers_leaves_an_engine_that_sleeps() -> None:
    async with scheduler_stack(batch_timeout_ms=100) as stack:
        replica = await stack.replica()
        await replica.submit(0, [5] * 10, 3)
        await replica.cancel(0)
        await stack.wait_idle()
        await asyncio.sleep(0.2)
        before = time.process_time()
        await asyncio.sleep(0.5)
        in_time(time.process_time() - before, 0.25, "rest")
        await replica.close()


async def test_a_long_prompts_chunks_shrink_as_it_grows() -> None:
    """By times that the worker tells of its steps: 5 ms, 1 a token, and 1 for 200 pairs of tokens. Steps of
    40 ms have 32 of the first tokens and 7 of the last.
    """

    def step_us(plan: StepPlan, result: StepResult) -> int:
        chunks = zip(plan.num_tokens, result.num_computed_tokens, strict=True)
        return round(5000 + sum(1000 * count + 5 * count * (end - count / 2) for count, end in chunks))

    worker = GrpcWorker(step_us=step_us, max_num_batched_tokens=256)
    async with scheduler_stack(worker, step_target_ms=40.0) as stack:
        replica = await stack.replica()
        told = await replica.submit(0, range(5, 905), 2)
        await told.wait()
        await replica.close()
    chunks = [plan.num_tokens[0] for plan in worker.plans if plan.num_tokens]
    long = [count for count in chunks if count > 1]
    assert sum(chunks) == 901
    ends = list(accumulate(long))
    times = [5 + count + 0.005 * count * (end - count / 2) for count, end in zip(long, ends, strict=True)]
    assert max(times[4:]) <= 1.15 * 40
    assert sorted(times)[len(times) // 2] >= 0.9 * 40
    assert long[-2] < long[3] / 2


async def test_the_policies_in_force_are_told() -> None:
    asked: dict[str, object] = {"order": "fcfs", "victims": "latest", "ageing_s": 7.0}
    asked |= {"prefill_interval": 3, "step_target_ms": 40.0}
    async with scheduler_stack(GrpcWorker(), **asked) as stack:
        (own, *_) = await stack.service.info()
        told = dict(own.settings)
        assert {name: told[name] for name in asked} == {name: str(value) for name, value in asked.items()}
        assert told["batch_timeout_ms"] == "0"
        config = stack.service.core._config
        assert config.order == FirstComeFirstServed(7.0)
        assert isinstance(config.victims, LatestOfLowestPriority)
        assert config.pace.interval == 3
