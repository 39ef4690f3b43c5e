"""The scheduler's core before a worker that takes time: a clock that jumps, a cost model of steps, no
sleeping.
"""

from __future__ import annotations

import heapq
import math
import random
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hundredfold_scheduler.core.intake import QueueLimits
from hundredfold_scheduler.core.integrity import check_all
from hundredfold_scheduler.core.limits import WorkerLimits
from hundredfold_scheduler.core.request import Request, Submission
from hundredfold_scheduler.core.scheduler import Scheduler, SchedulerConfig
from hundredfold_scheduler.core.step import EndReason, RowEnd, StepPlan, StepResult

CPU_LIKE = WorkerLimits(
    model_fingerprint="model",
    max_model_len=8192,
    vocab_size=1000,
    block_size=32,
    num_blocks=2048,
    max_num_seqs=64,
    max_num_batched_tokens=512,
)
"""A small CPU server: 64 seats, room for 65,536 tokens."""
UNBOUNDED = QueueLimits(max_requests=10**9, max_tokens=10**9)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a step takes, in seconds; about that of a small model on two cores."""

    fixed: float = 0.015
    per_row: float = 0.000_25
    per_token: float = 0.000_15
    per_context: float = 0.0
    """For each token that a decoding row reads."""
    per_pair: float = 0.0
    """For each token that a prompt's token reads."""
    noise: float = 0.0
    """Part by which a step takes longer or shorter, by chance."""

    def seconds(self, plan: StepPlan, result: StepResult) -> float:
        """The time of a plan that brought its rows so far; rows of one token, or that go on, are decodes."""
        found = self.fixed * (1 + result.num_repeats)
        for count, end in zip(plan.num_tokens, result.num_computed_tokens, strict=True):
            if count == 1 or plan.num_repeats:
                found += (1 + result.num_repeats) * (self.per_row + self.per_context * end)
            else:
                found += count * (self.per_token + self.per_pair * (end - count / 2))
        return found * (1 + random.Random(plan.step).uniform(-self.noise, self.noise))


@dataclass(slots=True)
class _Held:
    computed: int
    known: int
    end: int
    """Tokens at which it has ended."""


class Echo:
    """Answers plans as a worker would whose sequences end by length alone; checks nothing."""

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}

    def step(self, plan: StepPlan) -> StepResult:
        """One id for every row that reaches its last known token, and of each repeat."""
        for new in plan.new_sequences:
            prompt, output = len(new.prompt), len(new.output)
            self._held[new.slot] = _Held(new.num_computed_tokens, prompt + output, prompt + new.max_tokens)
        computed, counts, ends = [], [], []
        for row, (slot, num_tokens) in enumerate(zip(plan.slots, plan.num_tokens, strict=True)):
            held = self._held[slot]
            if held.known == held.end:
                computed.append(held.computed)
                counts.append(0)
                continue
            held.computed += num_tokens
            sampled = max(0, held.computed - held.known + 1)
            held.known += sampled
            computed.append(held.computed)
            counts.append(sampled)
            if held.known == held.end:
                ends.append(RowEnd(row, EndReason.LENGTH))
        repeats = min(plan.num_repeats, max(0, *counts) - 1) if plan.num_repeats else 0
        return StepResult(plan.step, computed, counts, [7] * sum(counts), ends, num_repeats=max(0, repeats))

    def held(self, plan: StepPlan) -> dict[int, _Held]:
        """What is held of a plan's rows now, to ``take_back`` the plan later."""
        return {slot: replace(self._held[slot]) for slot in plan.slots if slot in self._held}

    def take_back(self, before: dict[int, _Held]) -> None:
        """The last plan was not carried out."""
        self._held |= before


@dataclass(slots=True)
class Life:
    """Times of one request; 0 for what has not happened."""

    submitted: float
    request: Request
    first_token: float = 0.0
    ended: float = 0.0
    token_times: list[float] = field(default_factory=list)

    @property
    def started(self) -> float:
        """When a step first worked on it."""
        return self.request.lead.first_step_at

    @property
    def ttft(self) -> float:
        """Seconds until its first token."""
        return self.first_token - self.submitted


class Simulation:
    """One scheduler, one worker, one replica. Requests are known by the stream id that ``submit`` returns."""

    def __init__(
        self, config: SchedulerConfig | None = None, limits: WorkerLimits = CPU_LIKE, cost: Cost = Cost()
    ) -> None:
        self.config = config or SchedulerConfig(UNBOUNDED)
        self.cost = cost
        self.limits = limits
        self.now = 0.0
        self.lives: dict[int, Life] = {}
        self.steps: list[tuple[float, float, StepPlan]] = []
        """Start, end and plan of each step."""
        self.on_end: Callable[[int], None] = lambda stream_id: None
        self.scheduler = Scheduler(self.config, seed=b"test" * 8)
        self.replica = self.scheduler.attach("replica", lambda: None, 0.0)
        self.worker = self.scheduler.connect("worker", limits, 0.0)
        self._echo = Echo()
        self._results: deque[tuple[float, StepResult]] = deque()
        self._before: dict[int, _Held] = {}
        """What was held before the last plan."""
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = 0

    def at(self, when: float, action: Callable[[], object]) -> None:
        """Do something at a time."""
        self._numbers += 1
        heapq.heappush(self._events, (when, self._numbers, action))

    def submit(self, length: int, max_tokens: int, *, tenant: str = "", priority: int = 0) -> int:
        """A request now, with a prompt that no other shares."""
        stream_id = len(self.lives)
        prompt = array("I", [3 + (stream_id * 7919 + i * 31) % 990 for i in range(length)])
        request = self.scheduler.submit(
            self.replica,
            Submission(
                stream_id,
                f"request-{stream_id}",
                prompt,
                max_tokens,
                None,
                priority=priority,
                tenant=tenant,
            ),
            self.now,
        )
        assert request is not None
        self.lives[stream_id] = Life(self.now, request)
        return stream_id

    def run(self, until: float = float("inf")) -> None:
        """Let time pass until then, or until nothing is left to do."""
        while True:
            self._plan_ahead()
            times = [self._results[0][0]] if self._results else []
            times += [self._events[0][0]] if self._events else []
            due = self.scheduler.next_due(self.now)
            times += [due] if due is not None else []
            if not times or min(times) > until:
                break
            self.now = max(self.now, min(times))
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
            if self._results and self._results[0][0] <= self.now:
                self.scheduler.apply(self.worker, self._results.popleft()[1], self.now)
                self._read()
        check_all(self.scheduler.state)

    def _plan_ahead(self) -> None:
        while (plan := self.scheduler.plan(self.worker, self.now)) is not None:
            if plan.new_sequences and self._results:
                self._end_soon()
            self._carry_out(plan, max(self.now, self._results[-1][0] if self._results else 0.0))

    def _carry_out(self, plan: StepPlan, start: float) -> None:
        self._before = self._echo.held(plan)
        result = self._echo.step(plan)
        seconds = self.cost.seconds(plan, result)
        result.step_us = round(seconds * 1e6)
        self.steps.append((start, start + seconds, plan))
        self._results.append((start + seconds, result))

    def _end_soon(self) -> None:
        """The plan before one that brings sequences ends with the pass that runs."""
        start, end, plan = self.steps[-1]
        _, result = self._results[-1]
        pass_s = (end - start) / (1 + result.num_repeats)
        passes = max(1, math.ceil((self.now - start) / pass_s))
        if passes > result.num_repeats:
            return
        self.steps.pop()
        self._results.pop()
        self._echo.take_back(self._before)
        num_tokens = [min(passes, count) for count in plan.num_tokens]
        self._carry_out(replace(plan, num_tokens=num_tokens, num_repeats=passes - 1, new_sequences=[]), start)

    def _read(self) -> None:
        batch = self.replica.outbox.drain()
        for stream_id, count in zip(batch.stream_ids, batch.counts, strict=True):
            life = self.lives[stream_id]
            life.first_token = life.first_token or self.now
            life.token_times += [self.now] * count
        assert not batch.failed
        for finished in batch.finished:
            self.lives[finished.stream_id].ended = self.now
            self.on_end(finished.stream_id)


def percentile(values: list[float], share: float) -> float:
    """The value that ``share`` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
