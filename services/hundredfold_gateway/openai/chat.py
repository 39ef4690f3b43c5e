"""The body of a chat completion request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from hundredfold.client import ChatMessage, GenerateOptions
from hundredfold_gateway.errors import ApiError
from hundredfold_gateway.openai.fields import UInt32, unsupported
from hundredfold_gateway.openai.messages import MAX_MESSAGES, Message, chat_messages
from hundredfold_gateway.openai.sampling import SharedFields


class ChatRequest(SharedFields):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: UInt32 | None = None
    logprobs: bool | None = None
    top_logprobs: UInt32 | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None
    reasoning_effort: str | None = None
    """Given to the template, which may know it."""
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> ChatRequest:
        """The typed request. Raises ``ApiError``."""
        request = cls.parsed(body)
        if request.top_logprobs is not None and not request.logprobs:
            raise ApiError(400, "top_logprobs goes with logprobs = true", param="top_logprobs")
        both = (request.max_tokens, request.max_completion_tokens)
        if None not in both and both[0] != both[1]:
            raise ApiError(
                400,
                f"max_completion_tokens = {both[1]} contradicts max_tokens = {both[0]}",
                param="max_completion_tokens",
            )
        request._refuse_missing_features()
        return request

    @property
    def names(self) -> dict[str, str]:
        """What this request calls fields of the contract, where it is not the same name."""
        names = {"logprobs": "top_logprobs" if self.top_logprobs is not None else "logprobs"}
        if self.max_completion_tokens is not None:
            names["max_tokens"] = "max_completion_tokens"
        return names

    def prompt(self) -> list[ChatMessage]:
        """The conversation. Raises ``ApiError``."""
        return chat_messages(self.messages)

    def options(self) -> GenerateOptions:
        """What goes with the conversation."""
        options = super().options()
        if self.max_completion_tokens is not None:
            options["max_tokens"] = self.max_completion_tokens
        if self.logprobs:
            options["logprobs"] = self.top_logprobs or 0
        arguments = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            arguments.setdefault("reasoning_effort", self.reasoning_effort)
        options["template_arguments"] = arguments or None
        options["tools"] = None if self.tool_choice == "none" else self.tools or None
        options["add_generation_prompt"] = self.add_generation_prompt
        options["continue_final_message"] = self.continue_final_message
        return options

    def _refuse_missing_features(self) -> None:
        """Asked for and left out would be worse than refused."""
        if self.tool_choice not in (None, "none", "auto"):
            raise unsupported("tool_choice", "a tool_choice other than none and auto")
        if self.response_format is not None and self.response_format.get("type") != "text":
            raise unsupported("response_format", "a response_format of another type than text")
        if self.modalities not in (None, ["text"]):
            raise unsupported("modalities", "a modality other than text")
