"""How one sequence is sampled, and what is wrong with it before it can do harm."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hundredfold_worker.failures import FailureCode, RequestFailure

GREEDY_TEMPERATURE = 1e-4
"""At or below this a temperature is 0: it could only tell apart what float32 rounding mixes up already."""

MAX_LOGPROBS = 20
MAX_STOP_TOKENS = 1024
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_TOKENS = 256
MAX_BIAS_TOKENS = 4096
MAX_CANDIDATES = 2048
_MAX_TEMPERATURE = 100.0
_MAX_PENALTY = 100.0


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of a sequence, every default resolved. The meaning of each is that of ``SequenceParams``."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    choice_index: int = 0
    stop_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    bias_ids: tuple[int, ...] = ()
    bias_values: tuple[float, ...] = ()
    """What is added to the logits of ``bias_ids``, in the same order."""
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    vocab_limit: int = 0
    adapter_id: str | None = None
    grammar_id: str | None = None
    num_candidates: int = 0
    """Not 0 for a beam: instead of a draw, so many of the likeliest next ids."""

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.temperature <= GREEDY_TEMPERATURE

    @property
    def penalized(self) -> bool:
        """Whether tokens seen before count."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0


def find_fault(params: SamplingParams, vocab_size: int) -> RequestFailure | None:
    """What makes ``params`` impossible to sample with, or ``None``."""
    for name, given in (("adapter_id", params.adapter_id), ("grammar_id", params.grammar_id)):
        if given is not None:
            return RequestFailure(FailureCode.UNIMPLEMENTED, f"{name} is not supported by this worker", name)
    for name, value, least, most in (
        ("temperature", params.temperature, 0.0, _MAX_TEMPERATURE),
        ("top_p", params.top_p, math.nextafter(0.0, 1.0), 1.0),
        ("min_p", params.min_p, 0.0, 1.0),
        ("presence_penalty", params.presence_penalty, -_MAX_PENALTY, _MAX_PENALTY),
        ("frequency_penalty", params.frequency_penalty, -_MAX_PENALTY, _MAX_PENALTY),
        ("repetition_penalty", params.repetition_penalty, math.nextafter(0.0, 1.0), _MAX_PENALTY),
        ("logprobs", params.logprobs or 0, 0, MAX_LOGPROBS),
        ("prompt_logprobs", params.prompt_logprobs or 0, 0, MAX_LOGPROBS),
        ("vocab_limit", params.vocab_limit, 0, vocab_size),
        ("stop_token_ids", len(params.stop_token_ids), 0, MAX_STOP_TOKENS),
        ("bad_words", len(params.bad_words), 0, MAX_BAD_WORDS),
        ("bias_token_ids", len(params.bias_ids), 0, MAX_BIAS_TOKENS),
        ("num_candidates", params.num_candidates, 0, MAX_CANDIDATES),
    ):
        if not least <= value <= most:  # false for NaN too
            return _invalid(name, f"{name} is {value:g}, it has to be from {least:g} to {most:g}")
    if params.num_candidates and params.logprobs is not None:
        return _invalid("logprobs", f"logprobs = {params.logprobs} is not told of the tokens of a beam")
    return _find_bad_ids(params, vocab_size)


def _find_bad_ids(params: SamplingParams, vocab_size: int) -> RequestFailure | None:
    for word in params.bad_words:
        if not 1 <= len(word) <= MAX_BAD_WORD_TOKENS:
            return _invalid(
                "bad_words",
                f"bad_words has a word of {len(word)} ids, from 1 to {MAX_BAD_WORD_TOKENS} are allowed",
            )
    for name, ids in (
        ("bad_words", (i for word in params.bad_words for i in word)),
        ("bias_token_ids", params.bias_ids),
    ):
        for token_id in ids:
            if token_id >= vocab_size:
                return _invalid(name, f"{name} names id {token_id}, the vocabulary has {vocab_size}")
    if len(params.bias_values) != len(params.bias_ids):
        return _invalid(
            "bias_values",
            f"bias_values has {len(params.bias_values)} values, bias_token_ids has {len(params.bias_ids)}",
        )
    for token_id, value in zip(params.bias_ids, params.bias_values, strict=True):
        if not math.isfinite(value):
            return _invalid(
                "bias_values", f"bias_values has {value:g} for id {token_id}, it has to be finite"
            )
    return None


def _invalid(name: str, message: str) -> RequestFailure:
    return RequestFailure(FailureCode.INVALID_ARGUMENT, message, name)
