"""When newcomers may start, and how many prompt tokens a step takes: small policies, off by default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hundredfold_scheduler.core.waiting import WaitingQueue
from hundredfold_scheduler.core.worker import Worker


class PromptShare(Protocol):
    """How much of a step goes to prompts."""

    def tokens(self, worker: Worker, num_decodes: int) -> int:
        """Prompt tokens for a step beside so many decodes; at most what the worker's limits leave, at least 1
        where they leave any.
        """


class WholeBudget:
    """All that decodes leave of ``max_num_batched_tokens``."""

    def tokens(self, worker: Worker, num_decodes: int) -> int:
        """See ``PromptShare``."""
        return worker.limits.max_num_batched_tokens - num_decodes


@dataclass(frozen=True, slots=True)
class WithinTime:
    """As many as let the step end within a time, by what steps took on this worker before. Never less than a
    block: where decodes alone take too long, prompts still come to an end.
    """

    target_s: float

    def tokens(self, worker: Worker, num_decodes: int) -> int:
        """See ``PromptShare``."""
        most = worker.limits.max_num_batched_tokens - num_decodes
        wanted = worker.cost.tokens_within(self.target_s, num_decodes)
        return min(most, max(worker.limits.block_size, wanted))


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
