"""A step without bounds of time: what the policies of pacing are measured against."""

from __future__ import annotations

from hundredfold_scheduler.core.budget import Budget
from hundredfold_scheduler.core.step_cost import Work
from hundredfold_scheduler.core.worker import Worker


class WholeBudget:
    """All that decodes leave of ``max_num_batched_tokens``."""

    def budget(self, worker: Worker, decodes: Work, num_waiting: int, num_owners: int) -> Budget:
        """See ``PromptShare``."""
        return Budget(worker.limits.max_num_batched_tokens - decodes.rows)

    def prompts_first(self, worker: Worker, decodes: Work) -> bool:
        """See ``PromptShare``."""
        return False
