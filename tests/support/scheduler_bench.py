"""What a step costs the scheduler, by part, in µs: ``python scheduler_bench.py [running] [waiting]``.

Not a test: times are for people. The worker is simulated without its checks, the codec is the real one.
"""

from __future__ import annotations

import argparse
import sys
import time
from array import array
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from hundredfold_scheduler.core.intake import QueueLimits
from hundredfold_scheduler.core.limits import WorkerLimits
from hundredfold_scheduler.core.request import Submission
from hundredfold_scheduler.core.scheduler import Scheduler, SchedulerConfig
from hundredfold_scheduler.core.step import StepPlan, StepResult

PROMPT, OUTPUT, BLOCK = 64, 4096, 16


class Echo:
    """Answers any plan as a worker would whose sequences never stop."""

    def __init__(self) -> None:
        self.known: dict[int, list[int]] = {}

    def step(self, plan: StepPlan) -> StepResult:
        """One id for every row that reaches its last known token."""
        for new in plan.new_sequences:
            self.known[new.slot] = [new.num_computed_tokens, len(new.prompt) + len(new.output)]
        computed, counts = [], []
        for slot, num_tokens in zip(plan.slots, plan.num_tokens, strict=True):
            state = self.known[slot]
            state[0] += num_tokens
            sampled = state[0] == state[1]
            state[1] += sampled
            computed.append(state[0])
            counts.append(int(sampled))
        return StepResult(plan.step, computed, counts, [7] * sum(counts))


def measure(running: int, waiting: int, steps: int) -> dict[str, float]:
    """Microseconds of CPU per step, by part, with so many decoding and so many queued behind them."""
    limits = WorkerLimits("model", 8192, 50_000, BLOCK, running * 600, running, 8192)
    scheduler = Scheduler(SchedulerConfig(QueueLimits(10**6, 10**9)), seed=bytes(32))
    replica = scheduler.attach("replica", lambda: None, 0.0)
    seats = scheduler.connect("worker", limits, 0.0)
    for number in range(running + waiting):
        prompt = array("I", [(number * 31 + i) % 50_000 for i in range(PROMPT)])
        scheduler.submit(replica, Submission(number, f"r{number}", prompt, OUTPUT, None, deadline_s=1e6), 0.0)
    worker = Echo()
    pending: list[StepResult] = []
    spent = {"plan": 0.0, "apply": 0.0, "drain": 0.0}
    clock = time.thread_time
    for step in range(steps + 20):
        now = float(step)
        start = clock()
        plan = scheduler.plan(seats, now)
        planned = clock()
        if plan is not None:
            pending.append(worker.step(plan))
        if len(pending) < 2:
            continue
        applying = clock()
        scheduler.apply(seats, pending.pop(0), now)
        applied = clock()
        batch = replica.outbox.drain()
        drained = clock()
        if step >= 20:
            spent["plan"] += planned - start
            spent["apply"] += applied - applying
            spent["drain"] += drained - applied
            assert len(batch.stream_ids) == running, len(batch.stream_ids)
    return {name: seconds / steps * 1e6 for name, seconds in spent.items()}


def main() -> None:
    """Print the parts and their sum."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("running", type=int, nargs="?", default=256)
    parser.add_argument("waiting", type=int, nargs="?", default=0)
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()
    parts = measure(args.running, args.waiting, args.steps)
    for name, microseconds in (*parts.items(), ("total", sum(parts.values()))):
        print(f"{name:>8} {microseconds:8.1f} µs per step")


if __name__ == "__main__":
    main()
