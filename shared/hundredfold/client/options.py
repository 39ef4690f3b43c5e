"""What a caller may say about a request, as typed keyword arguments that mirror the public contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Required, TypedDict


class ChatMessage(TypedDict, total=False):
    """One turn of a conversation."""

    role: Required[str]
    content: str
    name: str
    tool_calls: Sequence[Mapping[str, Any]]
    tool_call_id: str


class SamplingOptions(TypedDict, total=False):
    """The fields of ``SamplingParams`` in proto/hundredfold/v1/generation.proto. None leaves one unset."""

    max_tokens: int | None
    min_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None
    stop: str | Sequence[str] | None
    include_stop: bool | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    bad_words: Sequence[str] | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    logprobs: int | None
    prompt_logprobs: int | None
    n: int | None
    beam_width: int | None
    length_penalty: float | None
    early_stopping: bool | None
    skip_special_tokens: bool | None
    add_special_tokens: bool | None


class ChatOptions(TypedDict, total=False):
    """What belongs to a conversation beside its messages."""

    template_arguments: Mapping[str, Any] | None
    tools: Sequence[Mapping[str, Any]] | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None


class GenerateOptions(SamplingOptions, ChatOptions, total=False):
    """Everything that ``generate`` takes beside its prompt."""

    model: str | None
    request_id: str | None
    priority: int | None
    tenant: str | None
    cache_salt: str | None
    adapter_id: str | None


SAMPLING_FIELDS = frozenset(SamplingOptions.__annotations__)
CHAT_FIELDS = frozenset(ChatOptions.__annotations__)
REQUEST_FIELDS = frozenset(GenerateOptions.__annotations__) - SAMPLING_FIELDS - CHAT_FIELDS
