"""The body of a (text) completion request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator

from hundredfold.client import GenerateOptions
from hundredfold_gateway.errors import ApiError
from hundredfold_gateway.openai.fields import UInt32, unsupported
from hundredfold_gateway.openai.sampling import SharedFields

DEFAULT_MAX_TOKENS = 16
"""OpenAI's own, for this kind of request."""

Prompt: TypeAlias = str | list[int]
"""Text or token ids."""


def _prompts(value: Any) -> list[Prompt]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        if not value:
            raise ValueError("the array is empty")
        if all(type(part) is int for part in value):
            return [_ids(value)]
        if all(isinstance(part, str) for part in value):
            return value
        if all(isinstance(part, list) for part in value):
            return [_ids(part) for part in value]
    raise ValueError("a string, an array of strings, of token ids, or of arrays of token ids is needed")


def _ids(value: list[Any]) -> list[int]:
    if not all(type(part) is int for part in value):
        raise ValueError("token ids are numbers")
    if value and not (min(value) >= 0 and max(value) < 2**32):
        raise ValueError("token ids are from 0 to 4294967295")
    return value


class CompletionRequest(SharedFields):
    """POST /v1/completions."""

    prompt: Annotated[Any, BeforeValidator(_prompts)]
    """One text, several, the token ids of one, or those of several."""
    echo: bool = False
    logprobs: UInt32 | None = None
    best_of: UInt32 | None = None
    suffix: str | None = None

    @classmethod
    def read(cls, body: Mapping[str, Any], max_prompts: int) -> CompletionRequest:
        """The typed request. Raises ``ApiError``."""
        request = cls.parsed(body)
        if len(request.prompts) > max_prompts:
            raise ApiError(
                400,
                f"prompt = an array of {len(request.prompts)}: above the limit max_prompts = {max_prompts}",
                param="prompt",
            )
        if request.best_of not in (None, request.choices):
            raise unsupported("best_of", "best_of other than n")
        if request.suffix:
            raise unsupported("suffix", "suffix")
        return request

    @property
    def prompts(self) -> list[Prompt]:
        """All of them."""
        prompts: list[Prompt] = self.prompt
        return prompts

    @property
    def names(self) -> dict[str, str]:
        """What this request calls fields of the contract, where it is not the same name."""
        return {}

    def options(self) -> GenerateOptions:
        """What goes with each prompt."""
        options = super().options()
        if self.max_tokens is None:
            options["max_tokens"] = DEFAULT_MAX_TOKENS
        options["logprobs"] = self.logprobs
        if self.echo and (self.logprobs is not None or self.max_tokens == 0):
            options["prompt_logprobs"] = self.logprobs or 0
        return options
