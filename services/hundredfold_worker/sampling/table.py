"""Sampling parameters of every slot, as arrays that a step gathers its rows from."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hundredfold_worker.sampling.history import BadWords, TokenCounts
from hundredfold_worker.sampling.params import SamplingParams

_FIRST_STOPS = 8
_NO_TOKEN = -1


@dataclass(slots=True)
class SparseEdits:
    """What a slot does to single logits; ``None`` and empty where it does nothing."""

    bias_ids: NDArray[np.int64]
    bias_values: NDArray[np.float32]
    stop_ids: NDArray[np.int64]
    bad_words: BadWords | None
    counts: TokenCounts | None


@dataclass(slots=True)
class SamplingTable:
    """Parameters by slot. Only what differs from slot to slot in kind is kept outside arrays."""

    num_slots: int
    vocab_size: int
    temperature: NDArray[np.float32] = field(init=False)
    """float32[S]; 0 is greedy."""
    top_p: NDArray[np.float64] = field(init=False)
    top_k: NDArray[np.int64] = field(init=False)
    """int64[S]; the vocabulary's size when off."""
    min_p: NDArray[np.float64] = field(init=False)
    seed: NDArray[np.uint64] = field(init=False)
    choice: NDArray[np.uint64] = field(init=False)
    vocab_limit: NDArray[np.int64] = field(init=False)
    """int64[S]; ids from here on are never sampled nor listed."""
    presence: NDArray[np.float32] = field(init=False)
    frequency: NDArray[np.float32] = field(init=False)
    repetition: NDArray[np.float32] = field(init=False)
    min_tokens: NDArray[np.int64] = field(init=False)
    max_tokens: NDArray[np.int64] = field(init=False)
    logprobs: NDArray[np.int64] = field(init=False)
    """int64[S]; -1 for none."""
    prompt_logprobs: NDArray[np.int64] = field(init=False)
    num_candidates: NDArray[np.int64] = field(init=False)
    """int64[S]; 0 for a sequence that is sampled."""
    edited: NDArray[np.bool_] = field(init=False)
    """bool[S]: whether bias, bad words or penalties change logits at every position."""
    counted: NDArray[np.bool_] = field(init=False)
    """bool[S]: whether penalties need the tokens counted."""
    likeliest: NDArray[np.bool_] = field(init=False)
    """bool[S]: whether a slot takes the likeliest token of plain logits at every position, and no more is
    asked."""
    has_stops: NDArray[np.bool_] = field(init=False)
    stops: NDArray[np.int64] = field(init=False)
    """int64[S, most stop ids of a slot], filled up with -1."""
    sparse: dict[int, SparseEdits] = field(init=False, default_factory=dict)
    """By slot, for the slots that have any."""

    def __post_init__(self) -> None:
        """Allocate every array once."""
        shape = self.num_slots
        for name in ("temperature", "presence", "frequency", "repetition"):
            setattr(self, name, np.zeros(shape, dtype=np.float32))
        for name in ("top_p", "min_p"):
            setattr(self, name, np.zeros(shape, dtype=np.float64))
        for name in ("seed", "choice"):
            setattr(self, name, np.zeros(shape, dtype=np.uint64))
        for name in ("top_k", "vocab_limit", "min_tokens", "max_tokens"):
            setattr(self, name, np.zeros(shape, dtype=np.int64))
        for name in ("logprobs", "prompt_logprobs", "num_candidates"):
            setattr(self, name, np.zeros(shape, dtype=np.int64))
        for name in ("edited", "counted", "has_stops", "likeliest"):
            setattr(self, name, np.zeros(shape, dtype=np.bool_))
        self.stops = np.full((shape, _FIRST_STOPS), _NO_TOKEN, dtype=np.int64)

    def put(
        self, slot: int, params: SamplingParams, prompt: NDArray[np.integer], output: NDArray[np.integer]
    ) -> None:
        """A sequence takes ``slot``; its parameters have passed ``find_fault``."""
        self.temperature[slot] = 0.0 if params.greedy else params.temperature
        self.top_p[slot] = params.top_p
        self.top_k[slot] = params.top_k if 0 < params.top_k < self.vocab_size else self.vocab_size
        self.min_p[slot] = params.min_p
        self.seed[slot] = params.seed
        self.choice[slot] = params.choice_index
        self.vocab_limit[slot] = params.vocab_limit or self.vocab_size
        self.presence[slot] = params.presence_penalty
        self.frequency[slot] = params.frequency_penalty
        self.repetition[slot] = params.repetition_penalty
        self.min_tokens[slot] = params.min_tokens
        self.max_tokens[slot] = params.max_tokens
        self.logprobs[slot] = -1 if params.logprobs is None else params.logprobs
        self.prompt_logprobs[slot] = -1 if params.prompt_logprobs is None else params.prompt_logprobs
        self.num_candidates[slot] = params.num_candidates
        self._put_stops(slot, params.stop_token_ids)
        self._put_sparse(slot, params, prompt, output)
        edited = self.edited[slot] or (self.has_stops[slot] and params.min_tokens > 0)
        asked = params.logprobs is not None or params.num_candidates > 0
        self.likeliest[slot] = params.greedy and not edited and not asked

    def branch(self, slots: NDArray[np.int64], sources: NDArray[np.int64]) -> None:
        """Each of ``slots`` takes what its source has, all sources as they are before the first does."""
        for column in fields(self):
            values = getattr(self, column.name)
            if isinstance(values, np.ndarray):
                values[slots] = values[sources]
        copies = [self.sparse.get(source) for source in sources.tolist()]
        twins = [edits and replace(edits, counts=edits.counts and edits.counts.copy()) for edits in copies]
        for slot, twin in zip(slots.tolist(), twins, strict=True):
            self.sparse.pop(slot, None)
            if twin is not None:
                self.sparse[slot] = twin

    def clear(self, slot: int) -> None:
        """The slot's sequence is forgotten."""
        self.sparse.pop(slot, None)

    def edits_pending(self, slots: NDArray[Any], num_outputs: NDArray[Any]) -> NDArray[np.bool_]:
        """bool[R]: rows whose logits are changed before this output position is drawn."""
        too_early = self.has_stops[slots] & (num_outputs < self.min_tokens[slots])
        pending: NDArray[np.bool_] = self.edited[slots] | too_early
        return pending

    def is_stop(self, slots: NDArray[Any], token_ids: NDArray[Any]) -> NDArray[np.bool_]:
        """bool[R]: whether each row's token ends its sequence."""
        found: NDArray[np.bool_] = (self.stops[slots] == token_ids[:, None]).any(axis=1)
        return found

    def _put_stops(self, slot: int, stop_ids: tuple[int, ...]) -> None:
        # An id beyond the vocabulary stops nothing; as a mask it would be out of bounds.
        ids = [token for token in dict.fromkeys(stop_ids) if token < self.vocab_size]
        width = self.stops.shape[1]
        if len(ids) > width:
            wider = np.full((self.num_slots, max(len(ids), 2 * width)), _NO_TOKEN, dtype=np.int64)
            wider[:, :width] = self.stops
            self.stops = wider
        self.stops[slot] = _NO_TOKEN
        self.stops[slot, : len(ids)] = ids
        self.has_stops[slot] = bool(ids)

    def _put_sparse(
        self, slot: int, params: SamplingParams, prompt: NDArray[np.integer], output: NDArray[np.integer]
    ) -> None:
        self.edited[slot] = bool(params.bias_ids or params.bad_words or params.penalized)
        self.counted[slot] = params.penalized
        self.sparse.pop(slot, None)
        if not (self.edited[slot] or self.has_stops[slot]):
            return
        stops = self.stops[slot]
        bias = dict(zip(params.bias_ids, params.bias_values, strict=True))
        seen_before = prompt if params.repetition_penalty != 1.0 else prompt[:0]
        self.sparse[slot] = SparseEdits(
            bias_ids=np.array(list(bias), dtype=np.int64),
            bias_values=np.array(list(bias.values()), dtype=np.float32),
            stop_ids=stops[stops != _NO_TOKEN],
            bad_words=BadWords(params.bad_words) if params.bad_words else None,
            counts=TokenCounts(seen_before, output) if params.penalized else None,
        )
