"""Random lives under random policies: whatever the order, the pace and the victims, every answer is right."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hundredfold_scheduler.core.limits import WorkerLimits
from hundredfold_scheduler.core.pacing import StartPace, WithinTime
from hundredfold_scheduler.core.policy import (
    CheapestOfLowestPriority,
    FirstComeFirstServed,
    LatestOfLowestPriority,
    StrictPriority,
)
from support.fake_worker import Script, expected_output
from support.scheduler_harness import Harness, Received
from support.whole_budget import WholeBudget

VOCAB = 50


@dataclass
class PolicyHarness(Harness):
    """The harness with a worker that says how long its steps took."""

    def take_result(self) -> bool:
        """Put a time on the step first: 5 ms and 1 ms per row, in each pass."""
        if self.results:
            each_us = 5000 + 1000 * len(self.results[0].num_computed_tokens)
            self.results[0].step_us = each_us * (1 + self.results[0].num_repeats)
        return super().take_result()


class PolicyLife:
    """One run: requests of a few tenants and priorities come and go until all is answered."""

    def __init__(self, seed: int) -> None:
        rng = self.random = random.Random(seed)
        ageing_s = rng.choice([0.0, 3.0, 50.0])
        self.limits = WorkerLimits(
            model_fingerprint="model",
            max_model_len=rng.choice([96, 160]),
            vocab_size=VOCAB,
            block_size=16,
            num_blocks=rng.choice([10, 17, 24, 48]),
            max_num_seqs=rng.choice([2, 8, 32]),
            max_num_batched_tokens=rng.choice([32, 64, 128]),
        )
        self.harness = PolicyHarness(
            self.limits,
            rng.choice([1, 2]),
            order=rng.choice([StrictPriority(ageing_s), FirstComeFirstServed(ageing_s)]),
            victims=rng.choice([CheapestOfLowestPriority(), LatestOfLowestPriority()]),
            share=rng.choice([WholeBudget(), WithinTime(0.012)]),
            pace=StartPace(rng.choice([0.0, 4.0]), rng.choice([1, 5])),
            run_ahead_s=rng.choice([0.0, 0.03, 0.1]),
        )
        self.answers: list[tuple[Received, list[int], int]] = []
        self.cancelled: set[int] = set()

    def ask(self) -> None:
        """One more request."""
        rng, number = self.random, len(self.answers)
        prompt = [rng.randrange(3, VOCAB) for _ in range(rng.choice([3, 16, 40, 90]))]
        max_tokens = rng.choice([1, 5, 17, 60])
        received = self.harness.submit(
            number,
            prompt,
            max_tokens,
            tenant=rng.choice(["", "a", "a", "a", "b", f"one-off-{number}"]),
            priority=rng.choice([0, 0, 0, 3, -100, 10**6]),
        )
        self.answers.append((received, prompt, max_tokens))

    def run(self, num_requests: int) -> None:
        """Until all has ended, then check every answer."""
        rng, harness = self.random, self.harness
        while len(self.answers) < num_requests or harness.scheduler.state.requests:
            for _ in range(rng.choice([0, 0, 1, 4])):
                if len(self.answers) < num_requests:
                    self.ask()
            live = list(harness.replica.requests)
            if live and rng.random() < 0.05:
                gone = rng.choice(live)
                self.cancelled.add(gone)
                harness.cancel(gone)
            if rng.random() < 0.01:
                harness.kill_worker()
                harness.start_worker(replace(self.limits))
            harness.turn()
            assert harness.now < 1000 + 400 * num_requests, "no end in sight"
        harness.run()
        harness.assert_empty()
        assert not harness.scheduler.state.waiting._lanes
        for number, (received, prompt, max_tokens) in enumerate(self.answers):
            room = self.limits.room_for_output(len(prompt))
            right = expected_output(prompt, min(max_tokens, room), Script(), VOCAB)
            assert received.ids == right[: len(received.ids)]
            if number not in self.cancelled and received.failure is None:
                assert received.ids == right


@pytest.mark.parametrize("seed", range(12))
def test_a_hundred_requests_under_any_policy(seed: int) -> None:
    """Items 1, 3, 7, 9 and 10 in one: nobody waits for ever, nobody thrashes, accounts agree."""
    PolicyLife(seed).run(100)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), num_requests=st.integers(1, 12))
def test_any_short_life_under_any_policy(seed: int, num_requests: int) -> None:
    """Short lives, so that a failure shrinks to few requests."""
    PolicyLife(seed).run(num_requests)
