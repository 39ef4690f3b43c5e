"""What one worker incarnation can hold and compute, as far as planning needs to know."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """Limits in force while one worker is connected: the worker's own, lowered by the settings."""

    model_fingerprint: str
    max_model_len: int
    """Longest prompt and answer together, in tokens."""
    vocab_size: int
    block_size: int
    """Tokens in a block."""
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    """Tokens that one step may compute; at least ``max_num_seqs``, so that every decode has its place."""

    def __post_init__(self) -> None:
        """Raises ``ValueError`` for limits under which nothing could run."""
        for name in ("max_model_len", "vocab_size", "block_size", "num_blocks", "max_num_seqs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} has to be at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens = {self.max_num_batched_tokens} is below "
                f"max_num_seqs = {self.max_num_seqs}"
            )

    @property
    def max_cache_tokens(self) -> int:
        """Most tokens that one sequence can hold in the cache."""
        return self.num_blocks * self.block_size

    def room_for_output(self, prompt_len: int) -> int:
        """Most output tokens after such a prompt. The last token of an answer is never computed, so it takes
        no place in the cache.
        """
        return min(self.max_model_len - prompt_len, self.max_cache_tokens - prompt_len + 1)
