"""Messages of a chat: OpenAI's forms of a turn, and the one form that templates read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ConfigDict

from hundredfold.client import ChatMessage
from hundredfold_gateway.errors import ApiError
from hundredfold_gateway.openai.fields import RequestModel, shown, unsupported

MAX_MESSAGES = 4096
"""What the door takes. More are refused before all are looked at, which would hold up the event loop."""

_ROLES = {"developer": "system"}
"""Newer names of what templates know by older ones."""

_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Kinds of content that are text, and where they hold it."""


class Message(RequestModel):
    """One turn. What an answer of ours has beside its content may come back with it."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    role: str
    content: Any = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


def chat_messages(messages: Sequence[Message]) -> list[ChatMessage]:
    """The turns for the door.

    Raises:
        ApiError: 400 for content that is no text.
    """
    return [_turn(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _turn(message: Message, where: str) -> ChatMessage:
    turn = ChatMessage(role=_ROLES.get(message.role, message.role))
    turn["content"] = _text(message, where)
    if message.name is not None:
        turn["name"] = message.name
    if message.tool_calls is not None:
        turn["tool_calls"] = message.tool_calls
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    return turn


def _text(message: Message, where: str) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    if content is None and message.role == "assistant":
        return ""  # a turn of tool calls alone
    if isinstance(content, list):
        return "\n".join(_part(part, f"{where}.content[{index}]") for index, part in enumerate(content))
    raise ApiError(
        400,
        f"{where}.content = {shown(content)}: a string or an array of parts is needed",
        param=f"{where}.content",
        code="invalid_type",
    )


def _part(part: Any, where: str) -> str:
    if not isinstance(part, Mapping):
        raise ApiError(400, f"{where} = {shown(part)}: not an object", param=where, code="invalid_type")
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in _TEXT_PARTS:
        raise unsupported(f"{where}.type", f"{where}.type = {shown(kind)}; this server takes text, it")
    text = part.get(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise ApiError(
            400, f"{where}.text = {shown(text)}: not a string", param=f"{where}.text", code="invalid_type"
        )
    return text
