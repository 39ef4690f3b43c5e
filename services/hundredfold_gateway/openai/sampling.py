"""Parameters that chats and completions have in common, and what they are in the contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field

from hundredfold.client import GenerateOptions
from hundredfold_gateway.errors import ApiError
from hundredfold_gateway.openai.fields import Number, RequestModel, Strings, UInt32, parse

_SEED_MASK = 2**64 - 1


def _bias(value: Any) -> Any:
    """JSON has no numbers as keys: token ids come as strings."""
    if not isinstance(value, dict):
        return value
    ids: dict[int, Any] = {}
    for key, bias in value.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < 2**32):
            raise ValueError(f"key {key[:50]!r} is no token id")
        ids[int(key)] = bias
    return ids


class StreamOptions(RequestModel):
    """How an answer is streamed."""

    include_usage: bool = False
    include_obfuscation: bool = False
    """Accepted and left: padding against observers of encrypted traffic."""


class SharedFields(RequestModel):
    """What both kinds of request take. Bounds of the sampling fields are the door's, which says them."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None

    max_tokens: UInt32 | None = None
    min_tokens: UInt32 | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**32 - 1)] | None = None
    """-1 and 0 switch it off."""
    min_p: Number | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**64 - 1)] | None = None
    stop: Strings | None = None
    include_stop_str_in_output: bool | None = None
    stop_token_ids: list[UInt32] | None = None
    ignore_eos: bool | None = None
    bad_words: list[str] | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    repetition_penalty: Number | None = None
    logit_bias: Annotated[dict[UInt32, Number], BeforeValidator(_bias)] | None = None
    n: Annotated[int, Field(ge=1, le=2**32 - 1)] | None = None
    beam_width: UInt32 | None = None
    length_penalty: Number | None = None
    early_stopping: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None

    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    tenant: str | None = None
    cache_salt: str | None = None

    user: str | None = None
    """Accepted and left, like the four below: they ask for nothing that changes an answer."""
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @classmethod
    def parsed(cls, body: Mapping[str, Any]) -> Self:
        """The typed request; what both kinds check beyond types. Raises ``ApiError``."""
        request = parse(cls, body)
        if request.stream_options is not None and not request.stream:
            raise ApiError(400, "stream_options goes with stream = true", param="stream_options")
        return request

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def choices(self) -> int:
        """Answers for each prompt."""
        return 1 if self.n is None else self.n

    def options(self) -> GenerateOptions:
        """The options of the client that these fields are."""
        return GenerateOptions(
            model=self.model,
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=None if self.top_k is None else max(0, self.top_k),
            min_p=self.min_p,
            seed=None if self.seed is None else self.seed & _SEED_MASK,
            stop=self.stop,
            include_stop=self.include_stop_str_in_output,
            stop_token_ids=self.stop_token_ids,
            ignore_eos=self.ignore_eos,
            bad_words=self.bad_words,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=self.logit_bias,
            n=self.n,
            beam_width=self.beam_width,
            length_penalty=self.length_penalty,
            early_stopping=self.early_stopping,
            skip_special_tokens=self.skip_special_tokens,
            add_special_tokens=self.add_special_tokens,
            priority=self.priority,
            tenant=self.tenant,
            cache_salt=self.cache_salt,
        )
