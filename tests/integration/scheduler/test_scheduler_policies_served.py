"""Settings of order and pace reach the core of a service that runs, and are told to who asks."""

from __future__ import annotations

import asyncio
import time

from hundredfold_scheduler.core.policy import FirstComeFirstServed, LatestOfLowestPriority
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
