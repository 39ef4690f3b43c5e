"""The worker's sequences: arrays indexed by slot, allocated once; the true lengths and ids live here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hundredfold_worker.engine.plan import Branch, Ints, NewSequence
from hundredfold_worker.failures import RequestFailure
from hundredfold_worker.sampling.table import SamplingTable

EMPTY, RUNNING, OVER = 0, 1, 2
"""States of a slot: no sequence, one that goes on, one that ended or failed and waits for its release."""

_SCORED_AT_ONCE = 64
_SPARE_TOKENS = 64
"""Room in a block table beyond the longest sequence, for tokens in flight that will not come to be."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What plans have to keep to."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    num_blocks: int
    vocab_size: int
    max_draft_tokens: int = 0
    """Draft tokens that one row can try."""
    max_draft_rows: int = 0
    """Decoding rows beyond which a step is faster without drafts, however many are right."""
    sliding_window: int | None = None
    """Tokens that a token sees in every layer; ``None`` when some layer sees all."""

    @property
    def max_blocks_per_sequence(self) -> int:
        """Length of a block table."""
        return -(-(self.max_model_len + _SPARE_TOKENS) // self.block_size)

    @property
    def max_logit_rows(self) -> int:
        """Logits rows of one forward: one for each sequence, and some for prompts, scored in pieces."""
        return self.max_num_seqs + _SCORED_AT_ONCE


class SlotTable:
    """State of every slot. Memory is touched only as far as sequences reach."""

    def __init__(self, limits: EngineLimits) -> None:
        slots = limits.max_num_seqs
        self.limits = limits
        self.sampling = SamplingTable(slots, limits.vocab_size)
        self.state: NDArray[np.uint8] = np.zeros(slots, dtype=np.uint8)
        self.sequence_id: NDArray[np.uint64] = np.zeros(slots, dtype=np.uint64)
        self.prompt_len: Ints = np.zeros(slots, dtype=np.int64)
        self.length: Ints = np.zeros(slots, dtype=np.int64)
        """Known tokens, prompt and output."""
        self.computed: Ints = np.zeros(slots, dtype=np.int64)
        """Leading tokens whose keys and values are in the cache."""
        self.num_blocks: Ints = np.zeros(slots, dtype=np.int64)
        self.blocks: NDArray[np.int32] = np.zeros((slots, limits.max_blocks_per_sequence), dtype=np.int32)
        self.ids: NDArray[np.int32] = np.zeros((slots, limits.max_model_len + 1), dtype=np.int32)
        self.faults: dict[int, RequestFailure] = {}
        """Sequences that arrived unusable; told with their first row."""

    @property
    def num_live(self) -> int:
        """Sequences that go on."""
        return int((self.state == RUNNING).sum())

    def tokens_of(self, slot: int) -> NDArray[np.int32]:
        """int32[length]: the slot's known ids."""
        return self.ids[slot, : self.length[slot]]

    def num_outputs(self, slots: Any) -> Ints:
        """Output tokens that exist."""
        outputs: Ints = self.length[slots] - self.prompt_len[slots]
        return outputs

    def put(self, new: NewSequence, fault: RequestFailure | None) -> None:
        """A sequence takes its slot; with a fault it takes it only to be told so. Blocks were checked."""
        slot = new.slot
        self.sequence_id[slot] = new.sequence_id
        self.state[slot] = RUNNING
        self.computed[slot] = new.num_computed
        self.num_blocks[slot] = len(new.block_ids)
        self.blocks[slot, : len(new.block_ids)] = new.block_ids
        if fault is not None:
            self.faults[slot] = fault
            self.prompt_len[slot] = self.length[slot] = self.computed[slot] = 0
            return
        total = len(new.prompt) + len(new.output)
        self.prompt_len[slot] = len(new.prompt)
        self.length[slot] = total
        self.ids[slot, : len(new.prompt)] = new.prompt
        self.ids[slot, len(new.prompt) : total] = new.output
        self.sampling.put(slot, new.params, new.prompt, new.output)
        room = self.limits.max_model_len - len(new.prompt)
        self.sampling.max_tokens[slot] = min(new.params.max_tokens, room)

    def branch(self, branches: Sequence[Branch]) -> None:
        """Beams go on as others and a token, all sources as they are before the first; checked before."""
        slots = np.array([branch.slot for branch in branches], dtype=np.int64)
        sources = np.array([branch.source_slot for branch in branches], dtype=np.int64)
        for column in (self.state, self.sequence_id, self.prompt_len, self.length, self.computed):
            column[slots] = column[sources]
        longest = int(self.length[slots].max())
        self.ids[slots, :longest] = self.ids[sources, :longest]
        self.blocks[slots] = self.blocks[sources]
        for branch in branches:
            size = branch.kept_blocks + len(branch.block_ids)
            self.blocks[branch.slot, branch.kept_blocks : size] = branch.block_ids
            self.num_blocks[branch.slot] = size
        self.sampling.branch(slots, sources)
        self.append(slots, np.array([branch.token_id for branch in branches], dtype=np.int64))

    def release(self, slot: int) -> None:
        """The slot is free."""
        self.state[slot] = EMPTY
        self.faults.pop(slot, None)
        self.sampling.clear(slot)

    def clear(self) -> None:
        """Every slot is free."""
        for slot in np.flatnonzero(self.state != EMPTY).tolist():
            self.release(slot)

    def append(self, slots: Ints, token_ids: Ints) -> None:
        """A sampled token for each slot."""
        self.ids[slots, self.length[slots]] = token_ids
        self.length[slots] += 1
        counted = self.sampling.counted[slots]
        if counted.any():
            for slot, token in zip(slots[counted].tolist(), token_ids[counted].tolist(), strict=True):
                counts = self.sampling.sparse[slot].counts
                if counts is not None:
                    counts.add(token)
