"""When newcomers may start, and how many prompt tokens a step takes: small policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hundredfold_scheduler.core.budget import Budget
from hundredfold_scheduler.core.step_cost import Work
from hundredfold_scheduler.core.waiting import WaitingQueue
from hundredfold_scheduler.core.worker import Worker


class PromptShare(Protocol):
    """How much of a step goes to prompts."""

    def budget(self, worker: Worker, decodes: Work, num_waiting: int, num_owners: int) -> Budget:
        """What prompts get of a step with such decodes, with so many waiting and so many owners that asked
        for something lately; at most what the worker's limits leave, at least a token where they leave any.
        """

    def prompts_first(self, worker: Worker, decodes: Work) -> bool:
        """Whether prompts that come to their end get a step before that of such decodes, not with them."""


LEAST = 0.1
"""Of what decodes take alone, that prompts get where no more is left."""


@dataclass(frozen=True, slots=True)
class WithinTime:
    """As many as let the step end within a time, by what steps took on this worker before. Where decodes
    alone take as long, prompts still come to an end.
    """

    target_s: float

    def budget(self, worker: Worker, decodes: Work, num_waiting: int, num_owners: int) -> Budget:
        """See ``PromptShare``."""
        return _within(self.target_s, worker, decodes)

    def prompts_first(self, worker: Worker, decodes: Work) -> bool:
        """Never: who decodes would wait for two steps, each within the time."""
        return False


STRETCH = 2.5
"""Times that a step may take what its decodes take alone. At 2 prompts of several tenants come in noticeably
slower, at 3 nothing is left for what a step takes longer than was thought.
"""


TO_THE_END = 0.4
"""Times that it may take more, where a prompt is at its end by it. Only while one owner is there: short
prompts would gain by it at the cost of others' long ones.
"""


@dataclass(frozen=True, slots=True)
class BesideDecodes:
    """As many as stretch a step to so many times what its decodes take alone, while somebody is to be spared:
    most sequences decode, or several owners are there, whose next request should not find long steps. Where
    one owner's prompts are the majority, and where one sequence is alone, prompts get all: nothing is gained
    by smaller steps then, and each costs a step's fixed part. The same before any step was measured.
    """

    stretch: float = STRETCH

    def budget(self, worker: Worker, decodes: Work, num_waiting: int, num_owners: int) -> Budget:
        """See ``PromptShare``."""
        running = len(worker.running)
        others = running - decodes.rows + min(num_waiting, worker.slots.num_free)
        alone_s = worker.cost.seconds(decodes)
        if (num_owners < 2 and others > decodes.rows) or (not decodes.rows and running < 2) or not alone_s:
            return Budget(worker.limits.max_num_batched_tokens - decodes.rows)
        slack_s = TO_THE_END * alone_s if num_owners < 2 else 0.0
        return _within(self.stretch * alone_s, worker, decodes, slack_s)

    def prompts_first(self, worker: Worker, decodes: Work) -> bool:
        """Where the decodes' own part of a step is more than what one step more costs: a first token would
        wait for more than those who decode lose.
        """
        return worker.cost.seconds(decodes) > 2 * worker.cost.fixed_s > 0


def _within(seconds: float, worker: Worker, decodes: Work, slack: float = 0.0) -> Budget:
    """What prompts may take for a step to take so long."""
    limits, cost = worker.limits, worker.cost
    alone_s = cost.seconds(decodes)
    return Budget(
        min(limits.max_num_batched_tokens - decodes.rows, cost.most_tokens),
        max(seconds - alone_s, LEAST * alone_s),
        cost.most_pairs,
        cost.prices(),
        limits.sliding_window,
        slack,
    )


@dataclass(frozen=True, slots=True)
class StartPace:
    """How soon newcomers start."""

    batch_timeout_s: float = 0.0
    """How long an idle worker waits for company for its first request."""
    interval: int = 1
    """Newcomers start at most every so many steps while others decode."""

    def may_start(
        self, worker: Worker, waiting: WaitingQueue, num_decodes: int, step: int, now: float
    ) -> bool:
        """Whether newcomers may start in this step."""
        if num_decodes and step - worker.last_start < self.interval:
            return False
        return not self._gathers(worker, waiting, now)

    def due(self, worker: Worker, waiting: WaitingQueue) -> float | None:
        """When a worker that gathers begins at the latest."""
        since = worker.gathers_since
        return None if since is None or not len(waiting) else since + self.batch_timeout_s

    def _gathers(self, worker: Worker, waiting: WaitingQueue, now: float) -> bool:
        """A batch that is as large as it can be waits no longer, and neither does work that was begun."""
        limits = worker.limits
        if (
            not self.batch_timeout_s
            or worker.running
            or not worker.takes_new
            or not 0 < waiting.num_fresh == len(waiting)
            or waiting.num_fresh >= limits.max_num_seqs
            or waiting.num_tokens >= limits.max_num_batched_tokens
        ):
            worker.gathers_since = None
            return False
        if worker.gathers_since is None:
            worker.gathers_since = now
        if now < worker.gathers_since + self.batch_timeout_s:
            return True
        worker.gathers_since = None
        return False
