"""A step without bounds of time: what the policies of pacing are measured against."""

from __future__ import annotations

from hundredfold_scheduler.core.worker import Worker


class WholeBudget:
    """All that decodes leave of ``max_num_batched_tokens``."""

    def tokens(self, worker: Worker, num_decodes: int, num_waiting: int, num_owners: int) -> int:
        """See ``PromptShare``."""
        return worker.limits.max_num_batched_tokens - num_decodes
