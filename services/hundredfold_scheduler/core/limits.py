"""What one worker incarnation can hold and compute, as far as planning needs to know; and what all can."""

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
    sliding_window: int | None = None
    """Tokens that a token sees in every layer, itself included; ``None`` when some layer sees all."""
    max_draft_tokens: int = 0
    """Draft tokens that one row can try."""
    max_draft_rows: int = 0
    """Decoding rows beyond which nobody drafts: a step is faster without."""

    def __post_init__(self) -> None:
        """Raises ``ValueError`` for limits under which nothing could run."""
        for name in ("max_model_len", "vocab_size", "block_size", "num_blocks", "max_num_seqs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} has to be at least 1")
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ValueError(f"sliding_window = {self.sliding_window} has to be at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens = {self.max_num_batched_tokens} is below "
                f"max_num_seqs = {self.max_num_seqs}"
            )

    @property
    def max_cache_tokens(self) -> int:
        """Most tokens that one sequence can hold in the cache."""
        return self.num_blocks * self.block_size

    def room_for_output(self, prompt_len: int, beams: int = 1) -> int:
        """Most output tokens after such a prompt. The last token of an answer is never computed, so it takes
        no place in the cache. Beams may have nothing in common but the prompt's full blocks.
        """
        shared = prompt_len // self.block_size
        blocks = shared + (self.num_blocks - shared) // beams
        return min(self.max_model_len - prompt_len, blocks * self.block_size - prompt_len + 1)

    def holds(self, prompt_len: int, max_tokens: int, beams: int = 1) -> bool:
        """Whether such a prompt and all of its answer fit."""
        return (
            prompt_len <= self.max_cache_tokens
            and prompt_len < self.max_model_len
            and beams <= self.max_num_seqs
            and max_tokens <= self.room_for_output(prompt_len, beams_apart(beams, max_tokens))
        )


def beams_apart(beams: int, max_tokens: int) -> int:
    """Beams that may be computed apart: none is before it has a second token to find."""
    return beams if max_tokens > 1 else 1


class KnownLimits:
    """Limits of every worker that is there or may come back, each kind once: mostly they are all alike."""

    def __init__(self) -> None:
        self._by_name: dict[str, WorkerLimits] = {}
        self._kinds: tuple[WorkerLimits, ...] = ()

    def see(self, name: str, limits: WorkerLimits) -> bool:
        """A worker has these now; returns whether that changes what a request may hope for. Workers of
        another model are forgotten: only those that are gone can be of one.
        """
        fingerprint = limits.model_fingerprint
        kept = {n: known for n, known in self._by_name.items() if known.model_fingerprint == fingerprint}
        return self._set({**kept, name: limits})

    def forget(self, name: str) -> bool:
        """A worker will not come back; returns whether that changes what a request may hope for."""
        return self._set({n: limits for n, limits in self._by_name.items() if n != name})

    @property
    def num_seats(self) -> int:
        """Seats of all together."""
        return sum(limits.max_num_seqs for limits in self._by_name.values())

    def widest(self, prompt_len: int, beams: int = 1) -> WorkerLimits | None:
        """The limits that leave most room for an answer to such a prompt; ``None`` while no worker is
        known.
        """
        kinds = self._kinds
        if len(kinds) == 1:
            return kinds[0]
        fitting = [limits for limits in kinds if beams <= limits.max_num_seqs] or kinds
        return max(fitting, key=lambda limits: limits.room_for_output(prompt_len, beams), default=None)

    def _set(self, by_name: dict[str, WorkerLimits]) -> bool:
        before = set(self._kinds)
        self._by_name = by_name
        self._kinds = tuple(dict.fromkeys(by_name.values()))
        return set(self._kinds) != before
