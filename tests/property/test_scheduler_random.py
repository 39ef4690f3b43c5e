"""Two thousand random requests through the scheduler's core: accounts agree, every answer is right.

Items 7, 15, 18, 22, 25 and 26 of the user reports in one: tiny pools, preemption, shared prefixes, cancels
and stop strings at random steps, deadlines, failing rows, dying workers and schedulers, one step in flight or
two.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hundredfold_scheduler.core.beam_search import BeamTerms
from hundredfold_scheduler.core.failures import Code
from hundredfold_scheduler.core.integrity import check_all
from hundredfold_scheduler.core.limits import WorkerLimits
from hundredfold_scheduler.core.pacing import BesideDecodes, StartPace, WithinTime
from hundredfold_scheduler.core.state import Totals
from hundredfold_scheduler.core.step import EndReason
from hundredfold_scheduler.core.step_cost import Work
from hundredfold_scheduler.core.worker import Worker
from support.fake_worker import EOS, Script, expected_beams, expected_output
from support.scheduler_harness import Harness, Received

VOCAB = 50
SALTS = (b"", b"", b"other")


@dataclass
class Asked:
    """A request, and what the test did to it."""

    prompt: list[int]
    max_tokens: int
    script: Script
    received: Received
    deadline: float | None = None
    cancelled: bool = False
    cut: set[int] = field(default_factory=set)
    """Choices that a stop string ended."""
    beams: BeamTerms | None = None


@dataclass
class TimedHarness(Harness):
    """The harness with steps that take their time, mostly long enough that the next is planned late: time
    passes to whatever comes first, a result or the moment that the scheduler asks for.
    """

    rng: random.Random = field(default_factory=random.Random)
    ends: deque[float] = field(default_factory=deque)
    """When each step in flight is over."""
    beside: int = 0
    """Plans made while a step ran, at the moment that the scheduler had asked for."""
    apart: int = 0
    """Plans of prompts that left the decodes to the next one."""

    def start_scheduler(self) -> None:
        """What was in flight is lost."""
        self.ends.clear()
        super().start_scheduler()

    def kill_worker(self) -> None:
        """What was in flight is lost."""
        self.ends.clear()
        super().kill_worker()

    def plan_ahead(self) -> bool:
        """Each step begins when it is planned and the one before is over."""
        planned = super().plan_ahead()
        self.apart += planned and 0 < self.seats.prompts_first == self.seats.planned
        for step in self.seats.in_flight:
            assert step.work.rows or not step.work.context
        while len(self.ends) < len(self.results):
            result = self.results[len(self.ends)]
            took = self.rng.choice([0.02, 0.05]) + 0.001 * sum(result.num_computed_tokens)
            took *= 1 + result.num_repeats
            result.step_us = round(took * self.rng.choice([0.7, 1, 1, 1, 1.5]) * 1e6)
            begins = max(self.now, self.ends[-1] if self.ends else 0.0)
            self.ends.append(begins + result.step_us / 1e6)
        return planned

    def turn(self) -> bool:
        """Plan what may be planned, then let time pass; false when there is nothing to wait for."""
        planned = self.plan_ahead()
        asked = self.scheduler.next_due(self.now)
        if self.ends and (asked is None or not self.now < asked < self.ends[0]):
            self.now = self.ends.popleft()
            return self.take_result()
        if asked is not None and asked > self.now:
            self.now = asked
            self.beside += self.plan_ahead() and len(self.ends) > 1
        else:
            self.now += 1
        self.read()
        return planned or asked is not None


class QuickHarness(Harness):
    """The harness with passes of a millisecond, of which some go on in one plan."""

    def take_result(self) -> bool:
        """Put a time on the step first."""
        if self.results:
            self.results[0].step_us = 1000 * (1 + self.results[0].num_repeats)
        return super().take_result()


class Life:
    """One random run: asks, disturbs and turns until all is answered."""

    def __init__(
        self, seed: int, plans_in_flight: int, num_requests: int, share_of_beams: float = 0.2
    ) -> None:
        self.random = random.Random(seed)
        block_size = self.random.choice([16, 16, 32])
        self.limits = WorkerLimits(
            model_fingerprint="model",
            max_model_len=self.random.choice([96, 160]),
            vocab_size=VOCAB,
            block_size=block_size,
            num_blocks=self.random.choice([5, 9, 16, 24]),
            max_num_seqs=self.random.choice([1, 4, 8]),
            max_num_batched_tokens=self.random.choice([8, 32, 128]),
            sliding_window=self.random.choice([None, None, 1, 20, 48]),
            max_draft_tokens=self.random.choice([0, 1, 4, 16]),
            max_draft_rows=self.random.choice([1, 8]),
        )
        self.harness = Harness(self.limits, plans_in_flight)
        if self.random.random() < 0.5:
            self.harness = QuickHarness(self.limits, plans_in_flight, run_ahead_s=0.006)
        self.num_requests = num_requests
        self.share_of_beams = share_of_beams
        self.past: list[Totals] = []
        """Of schedulers that have died."""
        self.asked: dict[int, Asked] = {}
        self.stems = [[self.random.randrange(3, VOCAB) for _ in range(48)] for _ in range(3)]

    def ask(self) -> None:
        """Submit one more request."""
        rng, stream_id = self.random, len(self.asked)
        prompt = rng.choice(self.stems)[: rng.choice([0, 16, 17, 32, 48])]
        prompt = prompt + [rng.randrange(3, VOCAB) for _ in range(rng.randrange(1, 40))]
        max_tokens = rng.choice([0, 1, 2, 5, 15, 16, 17, 40, 500])
        stop_at = rng.choice([0, 0, 1, 3, 12])
        script = Script(stop_at, fail_at=0 if rng.random() < 0.95 else rng.randrange(1, 6))
        deadline_s = None if rng.random() < 0.9 else rng.uniform(0.5, 60)
        n, beams = rng.choice([1, 1, 1, 2, 3, 5]), None
        if max_tokens and rng.random() < self.share_of_beams:
            beams = BeamTerms(rng.choice([2, 3, 4]), rng.choice([1.0, 0.0, 1.5]), rng.random() < 0.3)
            n, script = rng.randrange(1, beams.width + 1), replace(script, stop_at=0)
        received = self.harness.submit(
            stream_id,
            prompt,
            max_tokens,
            script,
            priority=rng.choice([0, 0, 0, 5, -3]),
            cache_salt=rng.choice(SALTS),
            skip_prefix_cache=rng.random() < 0.1,
            deadline_s=deadline_s,
            n=n,
            beams=beams,
        )
        now = self.harness.now
        self.asked[stream_id] = Asked(
            prompt,
            max_tokens,
            script,
            received,
            None if deadline_s is None else now + deadline_s,
            beams=beams,
        )

    def disturb(self) -> None:
        """Cancel, cut or kill, now and then."""
        rng, harness = self.random, self.harness
        live = [i for i in harness.replica.requests if not self.asked[i].received.ended]
        if live and rng.random() < 0.05:
            victim = rng.choice(live)
            self.asked[victim].cancelled = True
            harness.cancel(victim)
            harness.cancel(victim)
        if live and rng.random() < 0.05:
            self.cut(rng.choice(live))
        if rng.random() < 0.01:
            self.past.append(harness.scheduler.state.totals)
            untold = [i for i, a in self.asked.items() if not (a.received.ended or a.cancelled)]
            harness.restart_scheduler(untold)
            for i in untold:
                # A stop string whose news was lost is found again or not; here it is not.
                choices = self.asked[i].received.choices
                self.asked[i].cut = {c for c in self.asked[i].cut if choices[c].finished is not None}
        if rng.random() < 0.01:
            harness.cancel(10**6)
            harness.kill_worker()
            for _ in range(rng.randrange(3)):
                harness.turn()
            harness.start_worker(replace(self.limits, max_num_seqs=rng.choice([2, 4, 8])))

    def cut(self, victim: int) -> None:
        """A stop string ends one choice of a request; beams have none."""
        asked, harness = self.asked[victim], self.harness
        index = self.random.randrange(len(asked.received.choices))
        choice = asked.received.choices[index]
        if choice.finished is None and asked.beams is None:
            asked.cut.add(index)
        harness.scheduler.finish(harness.replica, victim, index, len(choice.ids), harness.now)

    def run(self) -> None:
        """Until all has ended, then check every answer."""
        while len(self.asked) < self.num_requests or self.harness.scheduler.state.requests:
            for _ in range(self.random.choice([0, 0, 1, 1, 2, 6])):
                if len(self.asked) < self.num_requests:
                    self.ask()
            self.disturb()
            self.harness.turn()
            if self.random.random() < 0.2:
                check_all(self.harness.scheduler.state)
            assert self.harness.now < 1000 + 400 * self.num_requests, "no end in sight"
        self.harness.run()
        self.harness.assert_empty()
        for asked in self.asked.values():
            self.check(asked)

    def check(self, asked: Asked) -> None:
        """Delivered ids are a beginning of the right answer, and the end is the right one."""
        received, width = asked.received, asked.beams.width if asked.beams is not None else 1
        room = self.limits.room_for_output(len(asked.prompt), width)
        if asked.cancelled:
            assert not received.ended
        if received.failure is not None:
            self.check_failure(asked, received.failure.code, room)
        elif not asked.cancelled:
            assert received.ended
        if asked.beams is not None:
            self.check_beams(asked, room)
            return
        for index, choice in enumerate(received.choices):
            right = expected_output(asked.prompt, min(asked.max_tokens, room), asked.script, VOCAB, index)
            if asked.script.fail_at:
                right = right[: asked.script.fail_at - 1] if asked.script.fail_at <= len(right) else right
            assert choice.ids == right[: len(choice.ids)]
            if choice.finished is None:
                continue
            if index in asked.cut:
                assert choice.finished.reason is EndReason.STOP
                continue
            assert choice.ids == right
            stopped = bool(right) and right[-1] == EOS
            assert choice.finished.reason is (EndReason.STOP if stopped else EndReason.LENGTH)
            assert choice.finished.stop_token_id == (EOS if stopped else None)

    def check_beams(self, asked: Asked, room: int) -> None:
        """Nothing is told of a search before it is over, and then its best beams."""
        if not asked.received.ended or asked.received.failure is not None:
            assert all(not choice.ids for choice in asked.received.choices)
            return
        assert asked.beams is not None
        best = expected_beams(asked.prompt, min(asked.max_tokens, room), asked.beams, VOCAB)
        for choice, right in zip(asked.received.choices, best, strict=False):
            assert choice.finished is not None
            assert (choice.ids, choice.finished.reason) == (list(right.output), right.reason)

    def total(self, name: str) -> int:
        """A counter over all schedulers."""
        return sum(getattr(totals, name) for totals in (*self.past, self.harness.scheduler.state.totals))

    def check_failure(self, asked: Asked, code: int, room: int) -> None:
        """A request fails only for a reason."""
        if code == Code.DEADLINE_EXCEEDED:
            assert asked.deadline is not None
            assert self.harness.now >= asked.deadline
        elif code == Code.INVALID_ARGUMENT:
            fewest = min(2, self.limits.max_num_seqs)  # of workers that come after a death
            too_wide = asked.beams is not None and asked.beams.width > fewest
            assert room < 1 or len(asked.prompt) >= self.limits.max_model_len or too_wide
        else:
            assert code == Code.INTERNAL
            assert asked.script.fail_at or self.total("worker_losses") >= 3


@pytest.mark.parametrize("plans_in_flight", [1, 2])
@pytest.mark.parametrize("seed", range(10))
def test_a_hundred_random_requests(seed: int, plans_in_flight: int) -> None:
    """Twenty lives of a hundred requests."""
    Life(seed, plans_in_flight, 100).run()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), plans_in_flight=st.integers(1, 2), num_requests=st.integers(1, 12))
def test_any_short_life(seed: int, plans_in_flight: int, num_requests: int) -> None:
    """Short lives, so that a failure shrinks to few requests."""
    Life(seed, plans_in_flight, num_requests).run()


def test_the_lives_are_hard() -> None:
    """The runs above exercise what they are for: without preemption, hits and replay they would prove
    nothing.
    """
    totals: dict[str, int] = {}
    for seed in range(10):
        life = Life(seed, 2, 100)
        life.run()
        for name in (
            "preemptions",
            "cached_tokens",
            "recomputed_tokens",
            "replays",
            "expired",
            "cancelled",
            "accepted_tokens",
        ):
            totals[name] = totals.get(name, 0) + life.total(name)
        assert life.total("accepted_tokens") <= life.total("drafted_tokens")
    assert min(totals.values()) >= 10, totals


def test_lives_of_beams() -> None:
    """Mostly beam searches, and memory so short that groups take it from each other."""
    copies = put_aside = 0
    for seed in range(10):
        life = Life(seed, 1 + seed % 2, 60, share_of_beams=0.8)
        life.run()
        copies += sum(len(plan.copies) for plan in life.harness.plans)
        ends = [asked.received.finished for asked in life.asked.values() if asked.beams is not None]
        put_aside += sum(end.account.preemptions for end in ends if end is not None)
    assert copies >= 100
    assert put_aside >= 3


class PromptsFirst(WithinTime):
    """Wherever they may be."""

    def prompts_first(self, worker: Worker, decodes: Work) -> bool:
        """See ``PromptShare``."""
        return decodes.rows > 0


@pytest.mark.parametrize("seed", range(8))
def test_lives_of_long_steps(seed: int) -> None:
    """Steps of tens of milliseconds, shorter and longer than thought: requests come, leave and die between a
    step's plan and the next one's. In every other life prompts come before decodes where they may, and idle
    workers wait for company in some.
    """
    share = PromptsFirst(0.2) if seed % 2 else BesideDecodes()
    life = Life(seed, 2, 100, share_of_beams=0.0 if seed % 2 else 0.2)
    if seed % 2:  # seats that are not all taken
        limits = {"max_num_seqs": 24, "num_blocks": [64, 24][seed % 4 // 2], "max_num_batched_tokens": 64}
        life.limits = replace(life.limits, **limits)
    pace = StartPace(0.3 if seed > 3 else 0.0)
    life.harness = harness = TimedHarness(
        life.limits, 2, share=share, pace=pace, run_ahead_s=0.1 * (seed % 3), rng=random.Random(seed)
    )
    life.run()
    assert harness.beside > len(harness.plans) / 10
    assert harness.apart or seed % 2 == 0
