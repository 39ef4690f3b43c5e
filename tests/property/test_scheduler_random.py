"""Two thousand random requests through the scheduler's core: accounts agree, every answer is right.

Items 7, 15, 18, 22, 25 and 26 of the user reports in one: tiny pools, preemption, shared prefixes, cancels
and stop strings at random steps, deadlines, failing rows, dying workers and schedulers, one step in flight or
two.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hundredfold_scheduler.core.failures import Code
from hundredfold_scheduler.core.limits import WorkerLimits
from hundredfold_scheduler.core.state import Totals
from hundredfold_scheduler.core.step import EndReason
from support.fake_worker import EOS, Script, expected_output
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
    cut_at: int | None = None


class Life:
    """One random run: asks, disturbs and turns until all is answered."""

    def __init__(self, seed: int, plans_in_flight: int, num_requests: int) -> None:
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
        )
        self.harness = Harness(self.limits, plans_in_flight)
        self.num_requests = num_requests
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
        received = self.harness.submit(
            stream_id,
            prompt,
            max_tokens,
            script,
            priority=rng.choice([0, 0, 0, 5, -3]),
            cache_salt=rng.choice(SALTS),
            skip_prefix_cache=rng.random() < 0.1,
            deadline_s=deadline_s,
        )
        now = self.harness.now
        self.asked[stream_id] = Asked(
            prompt, max_tokens, script, received, None if deadline_s is None else now + deadline_s
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
            victim = rng.choice(live)
            got = len(self.asked[victim].received.ids)
            self.asked[victim].cut_at = rng.randrange(got + 1)
            harness.scheduler.finish(harness.replica, victim, 0, got, harness.now)
        if rng.random() < 0.01:
            self.past.append(harness.scheduler.state.totals)
            untold = [i for i, a in self.asked.items() if not (a.received.ended or a.cancelled)]
            harness.restart_scheduler(untold)
            for i in untold:
                # A stop string whose news was lost is found again or not; here it is not.
                self.asked[i].cut_at = None
        if rng.random() < 0.01:
            harness.cancel(10**6)
            harness.kill_worker()
            for _ in range(rng.randrange(3)):
                harness.turn()
            harness.start_worker(replace(self.limits, max_num_seqs=rng.choice([2, 4, 8])))

    def run(self) -> None:
        """Until all has ended, then check every answer."""
        while len(self.asked) < self.num_requests or self.harness.scheduler.state.requests:
            for _ in range(self.random.choice([0, 0, 1, 1, 2, 6])):
                if len(self.asked) < self.num_requests:
                    self.ask()
            self.disturb()
            self.harness.turn()
            assert self.harness.now < 1000 + 400 * self.num_requests, "no end in sight"
        self.harness.run()
        self.harness.assert_empty()
        for asked in self.asked.values():
            self.check(asked)

    def check(self, asked: Asked) -> None:
        """Delivered ids are a beginning of the right answer, and the end is the right one."""
        received, limits = asked.received, self.limits
        room = limits.room_for_output(len(asked.prompt))
        right = expected_output(asked.prompt, min(asked.max_tokens, room), asked.script, VOCAB)
        if asked.script.fail_at:
            right = right[: asked.script.fail_at - 1] if asked.script.fail_at <= len(right) else right
        assert received.ids == right[: len(received.ids)]
        if asked.cancelled:
            assert not received.ended
        elif asked.cut_at is not None:
            assert received.finished is not None
            assert received.finished.reason is EndReason.STOP
        elif received.finished is not None:
            assert received.ids == right
            stopped = bool(right) and right[-1] == EOS
            assert received.finished.reason is (EndReason.STOP if stopped else EndReason.LENGTH)
            assert received.finished.stop_token_id == (EOS if stopped else None)
        else:
            assert received.failure is not None
            self.check_failure(asked, received.failure.code, room)

    def total(self, name: str) -> int:
        """A counter over all schedulers."""
        return sum(getattr(totals, name) for totals in (*self.past, self.harness.scheduler.state.totals))

    def check_failure(self, asked: Asked, code: int, room: int) -> None:
        """A request fails only for a reason."""
        if code == Code.DEADLINE_EXCEEDED:
            assert asked.deadline is not None
            assert self.harness.now >= asked.deadline
        elif code == Code.INVALID_ARGUMENT:
            assert room < 1 or len(asked.prompt) >= self.limits.max_model_len
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
        for name in ("preemptions", "cached_tokens", "recomputed_tokens", "replays", "expired", "cancelled"):
            totals[name] = totals.get(name, 0) + life.total(name)
    assert min(totals.values()) >= 10, totals
