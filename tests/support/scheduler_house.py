"""Several fake workers behind one scheduler core, in any interleaving; no network."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from hundredfold_scheduler.core.integrity import check_sums
from hundredfold_scheduler.core.limits import WorkerLimits
from hundredfold_scheduler.core.step import StepPlan, StepResult
from hundredfold_scheduler.core.worker import Worker
from support.fake_worker import FakeWorker
from support.scheduler_harness import SMALL, Harness


@dataclass
class Rig:
    """One worker from both sides, and what it has computed but not delivered."""

    limits: WorkerLimits
    seats: Worker
    fake: FakeWorker
    results: deque[StepResult] = field(default_factory=deque)
    plans: list[StepPlan] = field(default_factory=list)

    def seated(self) -> list[int]:
        """Numbers of the sequences that were ever seated here, in order."""
        return [new.sequence_id for plan in self.plans for new in plan.new_sequences]


@dataclass
class House(Harness):
    """``fleet`` is there from the start, and known to every new scheduler."""

    fleet: Mapping[str, WorkerLimits] = field(default_factory=lambda: {"a": SMALL, "b": SMALL})
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    """Whose result comes next."""

    def __post_init__(self) -> None:
        self.rigs: dict[str, Rig] = {}
        super().__post_init__()

    def start_worker(self, limits: WorkerLimits | None = None) -> None:
        """All of the fleet connect."""
        self.rigs.clear()
        for name, kind in self.fleet.items():
            self.join(name, limits or kind)

    def join(self, name: str, limits: WorkerLimits) -> Rig:
        """An empty worker connects."""
        fake = FakeWorker(
            limits.num_blocks,
            limits.block_size,
            limits.max_num_seqs,
            limits.max_num_batched_tokens,
            limits.vocab_size,
            max_draft_tokens=limits.max_draft_tokens,
        )
        rig = self.rigs[name] = Rig(limits, self.scheduler.connect(name, limits, self.now), fake)
        return rig

    def die(self, name: str) -> None:
        """A worker goes with what was in flight."""
        self.scheduler.lose(self.rigs.pop(name).seats, self.now)

    def plan_for(self, name: str) -> bool:
        """Send a worker all that may be sent now; false when that is nothing."""
        rig = self.rigs[name]
        made = len(rig.plans)
        while (plan := self.scheduler.plan(rig.seats, self.now)) is not None:
            for new in plan.new_sequences:
                assert rig.limits.holds(len(new.prompt), new.max_tokens), f"{name} cannot hold a sequence"
            rig.plans.append(plan)
            self.plans.append(plan)
            rig.results.append(rig.fake.step(plan))
        return len(rig.plans) > made

    def plan_ahead(self) -> bool:
        """Plan for every worker, in any order."""
        self.scheduler.expire(self.now)
        names = list(self.rigs)
        self.chance.shuffle(names)
        return sum(map(self.plan_for, names)) > 0

    def take_result(self) -> bool:
        """Take results of some of the workers in, at least one if one is due; then read."""
        due = [rig for rig in self.rigs.values() if rig.results]
        for rig in self.chance.sample(due, self.chance.randint(1, len(due))) if due else ():
            self.scheduler.apply(rig.seats, rig.results.popleft(), self.now)
        if self.check_every_step:
            check_sums(self.scheduler.state)
        self.read()
        return bool(due)

    def homes(self, stream_id: int) -> list[str]:
        """Workers on which a request was ever seated, those that have gone aside."""
        numbers = {number for number, stream in self.numbers.items() if stream == stream_id}
        return [name for name, rig in self.rigs.items() if numbers & set(rig.seated())]
