"""Checks ChatInput and turns it into what a template reads."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from hundredfold.v1 import generation_pb2 as pb
from hundredfold_tokenizer import limits
from hundredfold_tokenizer.validation.errors import invalid

_ROLE = re.compile(r"[A-Za-z0-9_.-]+")
_RESERVED = ("messages", "tools", "add_generation_prompt")


@dataclass(frozen=True, slots=True)
class Chat:
    """A checked conversation.

    Attributes:
        messages: The turns as templates read them.
        tools: The tools offered, or None.
        arguments: Further template variables.
        add_generation_prompt: Whether the assistant's turn is opened.
        continue_final: Whether the last turn stays open.
        num_bytes: Size of all that the client wrote.
    """

    messages: list[dict[str, Any]]
    tools: list[Any] | None
    arguments: dict[str, Any]
    add_generation_prompt: bool
    continue_final: bool
    num_bytes: int


def check_chat(message: pb.ChatInput, max_bytes: int) -> Chat:
    """The typed conversation.

    Raises:
        RequestError: INVALID_ARGUMENT.
    """
    num_bytes = message.ByteSize()
    if num_bytes > max_bytes:
        raise invalid("chat", f"{num_bytes} bytes", f"is above the limit {max_bytes}")
    if not 1 <= len(message.messages) <= limits.MAX_MESSAGES:
        found = f"{len(message.messages)} messages"
        raise invalid("chat.messages", found, f"is not from 1 to {limits.MAX_MESSAGES}")
    continues = message.continue_final_message
    if continues and message.add_generation_prompt:
        raise invalid("chat.add_generation_prompt", True, "excludes chat.continue_final_message")
    last = message.messages[-1]
    if continues and last.role != "assistant":
        raise invalid(
            "chat.continue_final_message", True, f"needs an assistant turn last, not {last.role[:64]!r}"
        )
    opens = message.add_generation_prompt if message.HasField("add_generation_prompt") else not continues
    tools = _json(message, "tools_json", "chat.tools_json", list)
    arguments = _json(message, "template_arguments_json", "chat.template_arguments_json", dict) or {}
    for name in _RESERVED:
        if name in arguments:
            raise invalid("chat.template_arguments_json", name, "has a field of its own in the request")
    return Chat(
        messages=[_turn(turn, f"chat.messages[{index}]") for index, turn in enumerate(message.messages)],
        tools=tools,
        arguments=arguments,
        add_generation_prompt=opens,
        continue_final=continues,
        num_bytes=num_bytes,
    )


def _turn(turn: pb.ChatMessage, field: str) -> dict[str, Any]:
    if len(turn.role) > limits.MAX_ROLE_CHARS:
        found = f"{len(turn.role)} characters"
        raise invalid(f"{field}.role", found, f"is above the limit {limits.MAX_ROLE_CHARS}")
    if _ROLE.fullmatch(turn.role) is None:
        # Templates write roles right into the frame of a turn, where a special token would count.
        raise invalid(
            f"{field}.role", turn.role, "is empty or holds other than letters, digits, '_', '.' and '-'"
        )
    made: dict[str, Any] = {"role": turn.role, "content": turn.content}
    if turn.HasField("name"):
        made["name"] = turn.name
    if turn.HasField("tool_call_id"):
        made["tool_call_id"] = turn.tool_call_id
    calls = _json(turn, "tool_calls_json", f"{field}.tool_calls_json", list)
    if calls is not None:
        made["tool_calls"] = calls
    return made


def _json(message: pb.ChatInput | pb.ChatMessage, name: str, field: str, kind: type[Any]) -> Any:
    """The JSON value of an optional field, of the right kind, or None if the field is unset."""
    if not message.HasField(name):  # type: ignore[arg-type]
        return None
    text: str = getattr(message, name)
    size = len(text.encode())
    if size > limits.MAX_JSON_BYTES:
        raise invalid(field, f"{size} bytes", f"is above the limit {limits.MAX_JSON_BYTES}")
    try:
        value = json.loads(text, parse_constant=_no_constant)
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair passes until here
    except (ValueError, RecursionError) as error:
        raise invalid(field, text, f"is no valid JSON: {str(error)[:100]}") from None
    if not isinstance(value, kind):
        wanted = "array" if kind is list else "object"
        raise invalid(field, text, f"is no JSON {wanted}")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")
