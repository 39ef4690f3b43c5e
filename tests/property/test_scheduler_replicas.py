"""Random lives of requests over two or three workers that join, leave, die and differ: accounts agree, every
answer is right, nobody is seated where he does not fit.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hundredfold_scheduler.core.beam_search import BeamTerms
from hundredfold_scheduler.core.failures import Code
from hundredfold_scheduler.core.integrity import check_all
from hundredfold_scheduler.core.limits import WorkerLimits
from hundredfold_scheduler.core.step import EndReason
from support.fake_worker import EOS, Script, expected_beams, expected_output
from support.scheduler_harness import Received
from support.scheduler_house import House

VOCAB = 50
WIDE = WorkerLimits("model", 160, VOCAB, 16, 11, 8, 64)
"""What ``wide`` has; it dies, but is known for ever, so that every request has a home."""
KINDS = (
    replace(WIDE, num_blocks=7, max_num_seqs=4),
    replace(WIDE, block_size=32, num_blocks=6),
    replace(WIDE, num_blocks=9, max_model_len=96, max_num_batched_tokens=16),
)


@dataclass
class Asked:
    """A request, and what the test did to it."""

    prompt: list[int]
    max_tokens: int
    script: Script
    received: Received
    beams: BeamTerms | None
    cancelled: bool = False


class Life:
    """One random run: asks, disturbs and turns until all is answered."""

    def __init__(self, seed: int, num_requests: int) -> None:
        self.random = rng = random.Random(seed)
        self.fleet = {"wide": WIDE, "b": rng.choice(KINDS)}
        self.house = House(plans_in_flight=rng.choice([1, 2]), fleet=self.fleet, chance=rng)
        self.num_requests = num_requests
        self.asked: dict[int, Asked] = {}
        self.stems = [[rng.randrange(3, VOCAB) for _ in range(48)] for _ in range(3)]
        self.deaths = self.departures = self.homes_changed = 0

    def ask(self) -> None:
        """Submit one more request."""
        rng, stream_id = self.random, len(self.asked)
        prompt = rng.choice(self.stems)[: rng.choice([0, 16, 33, 48])]
        prompt = prompt + [rng.randrange(3, VOCAB) for _ in range(rng.randrange(1, 40))]
        max_tokens = rng.choice([0, 1, 5, 16, 40, 500])
        script = Script(rng.choice([0, 0, 1, 12]), fail_at=0 if rng.random() < 0.97 else rng.randrange(1, 6))
        n, beams = rng.choice([1, 1, 2, 3]), None
        if max_tokens and rng.random() < 0.15:
            beams = BeamTerms(rng.choice([2, 3]), 1.0, rng.random() < 0.3)
            n, script = 1, replace(script, stop_at=0)
        received = self.house.submit(
            stream_id,
            prompt,
            max_tokens,
            script,
            tenant=rng.choice("xy"),
            priority=rng.choice([0, 0, 1]),
            n=n,
            beams=beams,
        )
        self.asked[stream_id] = Asked(prompt, max_tokens, script, received, beams)

    def disturb(self) -> None:
        """Workers come, go, die and fall silent; clients go; now and then the scheduler dies."""
        rng, house = self.random, self.house
        live = [i for i in house.replica.requests if not self.asked[i].received.ended]
        if live and rng.random() < 0.05:
            victim = rng.choice(live)
            self.asked[victim].cancelled = True
            house.cancel(victim)
        for name in list(house.rigs):
            worker = house.rigs[name].seats
            if rng.random() < 0.005:
                self.deaths += not worker.leaving
                house.die(name)
            elif rng.random() < 0.01:
                worker.leaving = True
                self.departures += 1
            elif rng.random() < 0.05:
                worker.silent = not worker.silent
            elif worker.leaving and (not worker.running or rng.random() < 0.05):
                house.die(name)
                if name != "wide" and rng.random() < 0.5:
                    house.scheduler.forget(name, house.now)
        for name in ("wide", "b", "c"):
            if name not in house.rigs and rng.random() < 0.1:
                house.join(name, WIDE if name == "wide" else rng.choice(KINDS))
        if rng.random() < 0.005:
            house.restart_scheduler(
                [i for i, a in self.asked.items() if not (a.received.ended or a.cancelled)]
            )
        if rng.random() < 0.1:
            check_all(house.scheduler.state)

    def run(self) -> None:
        """Until all has ended, then check every answer."""
        while len(self.asked) < self.num_requests or self.house.scheduler.state.requests:
            for _ in range(self.random.choice([0, 0, 1, 1, 2, 6])):
                if len(self.asked) < self.num_requests:
                    self.ask()
            self.disturb()
            self.house.turn()
            assert self.house.now < 1000 + 400 * self.num_requests, "no end in sight"
        self.house.run()
        for name in ("wide",):
            if name not in self.house.rigs:
                self.house.join(name, WIDE)
        self.house.assert_empty()
        for asked in self.asked.values():
            self.check(asked)

    def check(self, asked: Asked) -> None:
        """Delivered ids are a beginning of the right answer, and the end is the right one."""
        received = asked.received
        if asked.cancelled:
            assert not received.ended
        else:
            assert received.ended
        if received.failure is not None:
            assert received.failure.code == Code.INTERNAL
            assert asked.script.fail_at or self.deaths >= 3
        if asked.beams is not None:
            self.check_beams(asked, asked.beams)
            return
        room = WIDE.room_for_output(len(asked.prompt))
        for index, choice in enumerate(received.choices):
            right = expected_output(asked.prompt, min(asked.max_tokens, room), asked.script, VOCAB, index)
            if 0 < asked.script.fail_at <= len(right):
                right = right[: asked.script.fail_at - 1]
            assert choice.ids == right[: len(choice.ids)]
            if choice.finished is not None:
                assert choice.ids == right
                stopped = bool(right) and right[-1] == EOS
                assert choice.finished.reason is (EndReason.STOP if stopped else EndReason.LENGTH)

    def check_beams(self, asked: Asked, terms: BeamTerms) -> None:
        """The best beam, or nothing."""
        received = asked.received
        if received.finished is None:
            assert not received.ids
            return
        room = WIDE.room_for_output(len(asked.prompt), terms.width)
        best = expected_beams(asked.prompt, min(asked.max_tokens, room), terms, VOCAB)[0]
        assert (received.ids, received.finished.reason) == (list(best.output), best.reason)


@pytest.mark.parametrize("seed", range(12))
def test_eighty_random_requests_over_changing_workers(seed: int) -> None:
    Life(seed, 80).run()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), num_requests=st.integers(1, 12))
def test_any_short_life_over_changing_workers(seed: int, num_requests: int) -> None:
    """Short lives, so that a failure shrinks to few requests."""
    Life(seed, num_requests).run()


def test_the_lives_over_changing_workers_are_hard() -> None:
    """What the runs above are for does happen in them."""
    happened = dict.fromkeys(("deaths", "departures", "replays", "preemptions", "cached"), 0)
    for seed in range(8):
        life = Life(seed, 80)
        life.run()
        totals = life.house.scheduler.state.totals
        happened["deaths"] += life.deaths
        happened["departures"] += life.departures
        happened["replays"] += totals.replays
        happened["preemptions"] += totals.preemptions
        happened["cached"] += totals.cached_tokens
    assert min(happened.values()) >= 8, happened
