"""A checked request with its prompt encoded: all that the rest of the door needs to know of it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hundredfold.internal.v1 import sequence_pb2
from hundredfold.v1 import generation_pb2 as pb
from hundredfold_tokenizer.validation.errors import invalid
from hundredfold_tokenizer.validation.fields import Envelope
from hundredfold_tokenizer.validation.sampling import Sampling


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What bounds a request besides the contract.

    Attributes:
        max_model_len: Longest prompt and answer together.
        vocab_size: Size of the model's vocabulary.
        max_cache_tokens: Most tokens of one sequence that the cache can hold.
        block_size: Tokens in a block of the cache; beams share a prompt's full blocks.
    """

    max_model_len: int
    vocab_size: int
    max_cache_tokens: int
    block_size: int = 1

    def check_prompt(self, field: str, num_tokens: int) -> None:
        """Refuse a prompt that leaves no room for an answer: INVALID_ARGUMENT with both numbers."""
        if num_tokens == 0:
            raise invalid(field, "0 tokens", "is empty")
        if num_tokens >= self.max_model_len:
            limit = f"leaves no room below max_model_len = {self.max_model_len}"
            raise invalid(field, f"{num_tokens} tokens", limit)
        if num_tokens > self.max_cache_tokens:
            limit = f"is more than the cache holds for one sequence, {self.max_cache_tokens}"
            raise invalid(field, f"{num_tokens} tokens", limit)

    def room(self, num_tokens: int, beams: int = 1) -> int:
        """Most output tokens after a prompt of this length; the last one needs no place in the cache. Beams
        may have nothing in common but the prompt's full blocks; where they do not fit at all, the scheduler
        says so.
        """
        shared = num_tokens // self.block_size
        blocks = shared + (self.max_cache_tokens // self.block_size - shared) // beams
        room = min(self.max_model_len - num_tokens, blocks * self.block_size - num_tokens + 1)
        return room if room > 0 else self.room(num_tokens) if beams > 1 else 1


@dataclass(frozen=True, slots=True)
class Received:
    """What a client says it has of one choice.

    Attributes:
        token_ids: Its ids.
        num_chars: Characters of its text.
        field: Where the request says so, for refusals.
    """

    token_ids: Sequence[int] = ()
    num_chars: int = 0
    field: str = ""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request, ready to be submitted.

    Attributes:
        envelope: Who asks.
        operation: ``chat`` or ``text_completion``, for metrics.
        prompt: Its token ids.
        sampling: How to sample.
        max_tokens: Most output tokens, cut to the room there is.
        params: The same for scheduler and worker.
        received: What the client holds already, by choice; empty unless it resumes.
    """

    envelope: Envelope
    operation: str
    prompt: array[int]
    sampling: Sampling
    max_tokens: int
    params: sequence_pb2.SequenceParams
    received: Mapping[int, Received]


def sequence_params(
    sampling: Sampling,
    *,
    max_tokens: int,
    eos_ids: frozenset[int],
    bad_words: Iterable[Sequence[int]],
    vocab_limit: int,
) -> sequence_pb2.SequenceParams:
    """The parameters as scheduler and worker take them: every default and text resolved."""
    stop_ids = set(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else eos_ids)
    return sequence_pb2.SequenceParams(
        max_tokens=max_tokens,
        min_tokens=min(sampling.min_tokens, max_tokens),
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
        stop_token_ids=sorted(stop_ids),
        bad_words=[sequence_pb2.BadWord(token_ids=word) for word in bad_words],
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        bias_token_ids=[token_id for token_id, _ in sampling.logit_bias],
        bias_values=[value for _, value in sampling.logit_bias],
        logprobs=sampling.logprobs,
        prompt_logprobs=sampling.prompt_logprobs,
        vocab_limit=vocab_limit,
    )


def check_prompt_ids(ids: pb.TokenIds, limits: ModelLimits) -> array[int]:
    """Prompt ids as they are, each known to the model.

    Raises:
        RequestError: INVALID_ARGUMENT naming the index, the id and the limit.
    """
    limits.check_prompt("token_ids", len(ids.ids))
    found = array("I", ids.ids)
    if max(found) >= limits.vocab_size:
        index = next(index for index, token_id in enumerate(found) if token_id >= limits.vocab_size)
        limit = f"is no id of the vocabulary of {limits.vocab_size}"
        raise invalid(f"token_ids.ids[{index}]", found[index], limit)
    return found


def check_resume(
    message: pb.GenerateRequest, sampling: Sampling, max_tokens: int, limits: ModelLimits
) -> dict[int, Received]:
    """What the client says it has received, by choice.

    Raises:
        RequestError: INVALID_ARGUMENT.
    """
    received: dict[int, Received] = {}
    if not message.HasField("resume"):
        return received
    if sampling.temperature > 0 and not message.sampling.HasField("seed"):
        raise invalid("sampling.seed", "unset", "cannot be resumed; send the seed of the started event")
    choices = message.resume.choices
    if len(choices) > sampling.n:
        found = f"{len(choices)} choices"
        raise invalid("resume.choices", found, f"is more than the request has: {sampling.n}")
    for place, choice in enumerate(choices):
        field = f"resume.choices[{place}]"
        if choice.index >= sampling.n:
            limit = f"is no choice of this request; it has {sampling.n}"
            raise invalid(f"{field}.index", choice.index, limit)
        if choice.index in received:
            raise invalid(f"{field}.index", choice.index, "is named twice")
        if len(choice.token_ids) > max_tokens:
            found = f"{len(choice.token_ids)} tokens"
            raise invalid(f"{field}.token_ids", found, f"is above max_tokens = {max_tokens}")
        for index, token_id in enumerate(choice.token_ids):
            if token_id >= limits.vocab_size:
                limit = f"is no id of the vocabulary of {limits.vocab_size}"
                raise invalid(f"{field}.token_ids[{index}]", token_id, limit)
        received[choice.index] = Received(tuple(choice.token_ids), choice.num_chars, field)
    return received
