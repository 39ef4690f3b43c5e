"""Checks SamplingParams and fills in what was left unset."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from hundredfold.v1 import generation_pb2 as pb
from hundredfold_tokenizer import limits
from hundredfold_tokenizer.validation.choices import BeamSearch, check_choices
from hundredfold_tokenizer.validation.errors import invalid

_SEED_BITS = 53  # JSON's numbers hold these exactly
_DRAWS = ("temperature", "top_p", "top_k", "min_p")
_OFF: Mapping[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a request is sampled and when it stops, all defaults resolved but the length.

    Attributes are those of the contract's SamplingParams; ``max_tokens`` is None for the rest of the context,
    and ``from_checkpoint`` names the fields that the checkpoint's generation_config filled.
    """

    max_tokens: int | None
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    stop: tuple[str, ...]
    include_stop: bool
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    bad_words: tuple[str, ...]
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: tuple[tuple[int, float], ...]
    logprobs: int | None
    prompt_logprobs: int | None
    n: int
    beams: BeamSearch | None
    skip_special_tokens: bool
    add_special_tokens: bool
    from_checkpoint: tuple[str, ...]

    @property
    def beam_group(self) -> BeamSearch | None:
        """The search that takes several beams; a single beam takes the likeliest token, as others do."""
        return self.beams if self.beams is not None and self.beams.width > 1 else None

    def echo(self, max_tokens: int) -> pb.SamplingParams:
        """The values in force, as the started event tells them."""
        beams = self.beams
        return pb.SamplingParams(
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=self.seed,
            stop=self.stop,
            include_stop=self.include_stop,
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
            bad_words=self.bad_words,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=dict(self.logit_bias),
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            n=self.n,
            beam_width=None if beams is None else beams.width,
            length_penalty=None if beams is None else beams.length_penalty,
            early_stopping=None if beams is None else beams.early_stopping,
            skip_special_tokens=self.skip_special_tokens,
            add_special_tokens=self.add_special_tokens,
        )


def check_sampling(message: pb.SamplingParams, defaults: Mapping[str, float], vocab_size: int) -> Sampling:
    """The typed parameters of a message.

    Args:
        message: As the client sent it.
        defaults: The checkpoint's values by field name.
        vocab_size: Size of the model's vocabulary.

    Raises:
        RequestError: INVALID_ARGUMENT for a value out of bounds, UNIMPLEMENTED for a feature that is not
        there.
    """
    n, beams = check_choices(message)
    numbers, from_checkpoint = _numbers(message, defaults, _DRAWS if beams is not None else ())
    if beams is not None:
        numbers["temperature"] = 0.0
    _check_scores(message)
    stop = _check_stops(message)
    stop_ids = _check_ids(
        "sampling.stop_token_ids", message.stop_token_ids, limits.MAX_STOP_TOKEN_IDS, vocab_size
    )
    bad_words = _check_bad_words(message)
    bias = _check_bias(message, vocab_size)
    max_tokens, from_config = _max_tokens(message, defaults)
    if message.min_tokens > message.max_tokens and message.HasField("max_tokens"):
        raise invalid(
            "sampling.min_tokens", message.min_tokens, f"is above sampling.max_tokens = {message.max_tokens}"
        )
    return Sampling(
        max_tokens=max_tokens,
        min_tokens=message.min_tokens,
        temperature=numbers["temperature"],
        top_p=numbers["top_p"],
        top_k=int(numbers["top_k"]),
        min_p=numbers["min_p"],
        seed=message.seed if message.HasField("seed") else secrets.randbits(_SEED_BITS),
        stop=stop,
        include_stop=message.include_stop,
        stop_token_ids=stop_ids,
        ignore_eos=message.ignore_eos,
        bad_words=bad_words,
        presence_penalty=numbers["presence_penalty"],
        frequency_penalty=numbers["frequency_penalty"],
        repetition_penalty=numbers["repetition_penalty"],
        logit_bias=bias,
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        prompt_logprobs=message.prompt_logprobs if message.HasField("prompt_logprobs") else None,
        n=n,
        beams=beams,
        skip_special_tokens=message.skip_special_tokens if message.HasField("skip_special_tokens") else True,
        add_special_tokens=message.add_special_tokens if message.HasField("add_special_tokens") else True,
        from_checkpoint=(*from_checkpoint, *(("max_tokens",) if from_config else ())),
    )


def _numbers(
    message: pb.SamplingParams, defaults: Mapping[str, float], left_out: tuple[str, ...]
) -> tuple[dict[str, float], list[str]]:
    """The fields that are fractions; those ``left_out`` take no default of the checkpoint."""
    values: dict[str, float] = {}
    from_checkpoint = []
    for name, off in _OFF.items():
        if message.HasField(name):  # type: ignore[arg-type]
            value = getattr(message, name)
            bounds = limits.RANGES.get(name)
            if bounds is not None and not bounds.holds(value):
                raise invalid(f"sampling.{name}", value, f"is not {bounds}")
            values[name] = value
        elif name in defaults and name not in left_out:
            values[name] = defaults[name]
            from_checkpoint.append(name)
        else:
            values[name] = off
    return values, from_checkpoint


def _check_scores(message: pb.SamplingParams) -> None:
    for name, value in (("logprobs", message.logprobs), ("prompt_logprobs", message.prompt_logprobs)):
        if value > limits.MAX_LOGPROBS:
            raise invalid(f"sampling.{name}", value, f"is above the limit {limits.MAX_LOGPROBS}")


def _check_stops(message: pb.SamplingParams) -> tuple[str, ...]:
    if len(message.stop) > limits.MAX_STOPS:
        raise invalid(
            "sampling.stop", f"{len(message.stop)} strings", f"is above the limit {limits.MAX_STOPS}"
        )
    for index, stop in enumerate(message.stop):
        _check_text(f"sampling.stop[{index}]", stop, limits.MAX_STOP_BYTES)
    return tuple(message.stop)


def _check_bad_words(message: pb.SamplingParams) -> tuple[str, ...]:
    if len(message.bad_words) > limits.MAX_BAD_WORDS:
        found = f"{len(message.bad_words)} texts"
        raise invalid("sampling.bad_words", found, f"is above the limit {limits.MAX_BAD_WORDS}")
    for index, word in enumerate(message.bad_words):
        _check_text(f"sampling.bad_words[{index}]", word, limits.MAX_BAD_WORD_BYTES)
    return tuple(message.bad_words)


def _check_text(field: str, text: str, limit: int) -> None:
    if not text:
        raise invalid(field, text, "is empty")
    size = len(text.encode())
    if size > limit:
        raise invalid(field, f"{size} bytes", f"is above the limit {limit}")


def _check_ids(field: str, ids: object, limit: int, vocab_size: int) -> tuple[int, ...]:
    found: tuple[int, ...] = tuple(ids)  # type: ignore[arg-type]
    if len(found) > limit:
        raise invalid(field, f"{len(found)} ids", f"is above the limit {limit}")
    for index, token_id in enumerate(found):
        if token_id >= vocab_size:
            raise invalid(f"{field}[{index}]", token_id, f"is no id of the vocabulary of {vocab_size}")
    return found


def _check_bias(message: pb.SamplingParams, vocab_size: int) -> tuple[tuple[int, float], ...]:
    if len(message.logit_bias) > limits.MAX_LOGIT_BIAS:
        found = f"{len(message.logit_bias)} entries"
        raise invalid("sampling.logit_bias", found, f"is above the limit {limits.MAX_LOGIT_BIAS}")
    for token_id, value in message.logit_bias.items():
        field = f"sampling.logit_bias[{token_id}]"
        if token_id >= vocab_size:
            raise invalid(field, value, f"is for no id of the vocabulary of {vocab_size}")
        if not limits.BIAS.holds(value):
            raise invalid(field, value, f"is not {limits.BIAS}")
    return tuple(sorted(message.logit_bias.items()))


def _max_tokens(message: pb.SamplingParams, defaults: Mapping[str, float]) -> tuple[int | None, bool]:
    if not message.HasField("max_tokens"):
        stated = defaults.get("max_tokens")
        return (None, False) if stated is None else (int(stated), True)
    if message.max_tokens == 0 and not message.HasField("prompt_logprobs"):
        raise invalid("sampling.max_tokens", 0, "is below 1; only with sampling.prompt_logprobs it may be 0")
    return message.max_tokens, False
