"""The loop that turns the core: it wakes up for all that is due, whenever that came due."""

from __future__ import annotations

import asyncio
from array import array
from dataclasses import dataclass, field

from hundredfold.internal.v1 import worker_pb2
from hundredfold.rpc import Heartbeat
from hundredfold_scheduler.core.request import Submission
from hundredfold_scheduler.core.scheduler import Scheduler, SchedulerConfig
from hundredfold_scheduler.engine import Engine
from support.scheduler_harness import SMALL, UNBOUNDED

STEP_S = 0.1


@dataclass(eq=False)
class Stream:
    """Keeps the plans that it is given."""

    plans: list[worker_pb2.StepPlan] = field(default_factory=list)

    def send(self, message: worker_pb2.ExecuteRequest) -> None:
        """See ``WorkerStream``."""
        self.plans.append(message.plan)

    def abandon(self, reason: str) -> None:
        """See ``WorkerStream``."""
        raise AssertionError(reason)


async def test_a_plan_that_comes_due_while_replicas_are_told_is_made() -> None:
    """That takes a while when there are many. The plan is not left until the worker has nothing to do."""
    now, is_slow = 0.0, False

    def tell() -> None:
        nonlocal now
        now += 0.95 * STEP_S if is_slow else 0.0

    engine = Engine(Scheduler(SchedulerConfig(UNBOUNDED)), 1e6, Heartbeat("engine", 60.0), clock=lambda: now)
    stream, replica = Stream(), engine.attach("replica", tell)
    engine.worker_connected(stream, "worker", SMALL)
    engine.submit(replica, Submission(0, "request", array("I", [5] * 10), 50, None))
    turning = asyncio.create_task(engine.run())
    try:
        for step in (1, 2):
            await asyncio.sleep(0.01)
            assert len(stream.plans) == step + 1
            now, is_slow = now + STEP_S, step == 2
            result = worker_pb2.StepResult(
                step=step,
                num_computed_tokens=[9 + step],
                num_output_tokens=[1],
                token_ids=[7],
                step_us=round(STEP_S * 1e6),
            )
            engine.worker_answered(stream, result)
        for _ in range(200):
            await asyncio.sleep(0.01)
            if len(stream.plans) == 4:
                break
        assert len(stream.plans) == 4
    finally:
        turning.cancel()
