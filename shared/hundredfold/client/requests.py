"""Turns typed arguments into messages of the public contract."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import Message

from hundredfold.client.options import CHAT_FIELDS, REQUEST_FIELDS, SAMPLING_FIELDS, ChatMessage
from hundredfold.v1 import control_pb2
from hundredfold.v1 import generation_pb2 as pb
from hundredfold.v1 import tokenizer_pb2 as tok

_MESSAGE_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id")


def generate_request(
    text: str | None,
    chat: Sequence[ChatMessage] | None,
    token_ids: Sequence[int] | None,
    options: Mapping[str, Any],
) -> pb.GenerateRequest:
    """A request from exactly one prompt and ``GenerateOptions``.

    Raises:
        TypeError: No prompt or several, an unknown option, or a value of the wrong type.
        ValueError: A value that the field cannot hold; names both.
    """
    given = sum(prompt is not None for prompt in (text, chat, token_ids))
    if given != 1:
        raise TypeError(f"exactly one of text, chat and token_ids is needed, {given} were given")
    unknown = options.keys() - SAMPLING_FIELDS - CHAT_FIELDS - REQUEST_FIELDS
    if unknown:
        raise TypeError(f"unknown option {', '.join(sorted(unknown))}")
    request = pb.GenerateRequest()
    if text is not None:
        put(request, "text", text)
    elif token_ids is not None:
        request.token_ids.SetInParent()  # an empty list is a prompt too; the server refuses it
        put(request.token_ids, "ids", token_ids)
    chat_options = {name: options[name] for name in CHAT_FIELDS & options.keys()}
    if chat is not None:
        request.chat.CopyFrom(chat_input(chat, chat_options))
    elif any(value is not None for value in chat_options.values()):
        raise TypeError(f"{', '.join(sorted(chat_options))} only goes with chat")
    for name in REQUEST_FIELDS & options.keys():
        put(request, name, options[name])
    for name in SAMPLING_FIELDS & options.keys():
        value = options[name]
        put(request.sampling, name, [value] if name == "stop" and isinstance(value, str) else value)
    return request


def chat_input(messages: Sequence[ChatMessage], options: Mapping[str, Any]) -> pb.ChatInput:
    """A conversation from messages and ``ChatOptions``.

    Raises:
        TypeError, ValueError: As ``generate_request``.
    """
    chat = pb.ChatInput()
    for position, message in enumerate(messages):
        unknown = [key for key in message if key not in _MESSAGE_FIELDS]
        if unknown:
            raise TypeError(f"chat[{position}] has unknown key {', '.join(map(repr, unknown))}")
        turn = chat.messages.add()
        for name in ("role", "content", "name", "tool_call_id"):
            put(turn, name, message.get(name))
        put_json(turn, "tool_calls_json", message.get("tool_calls"))
    put_json(chat, "template_arguments_json", options.get("template_arguments"))
    put_json(chat, "tools_json", options.get("tools"))
    for name in ("add_generation_prompt", "continue_final_message"):
        put(chat, name, options.get(name))
    return chat


def put(message: Message, name: str, value: Any) -> None:
    """Set a field unless ``value`` is None; errors name the field."""
    if value is None:
        return
    try:
        if isinstance(value, Mapping):
            getattr(message, name).update(value)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None


def put_json(message: Message, name: str, value: Any) -> None:
    """Set a field to ``value`` as JSON unless it is None; errors name the field."""
    try:
        put(message, name, None if value is None else json.dumps(value))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name.removesuffix('_json')}: {error}") from None


def fill_unset(sampling: pb.SamplingParams, in_force: pb.SamplingParams) -> None:
    """Take from ``in_force`` each single value that ``sampling`` leaves open, the drawn seed above all."""
    given = {field.name for field, _ in sampling.ListFields()}
    for field, value in in_force.ListFields():
        if field.has_presence and field.name not in given:
            setattr(sampling, field.name, value)


def encode_request(
    text: str, add_special_tokens: bool | None, parse_special: bool | None, model: str | None
) -> tok.EncodeRequest:
    """The request for the ids of a text."""
    request = tok.EncodeRequest(text=text)
    put(request, "add_special_tokens", add_special_tokens)
    put(request, "parse_special", parse_special)
    put(request, "model", model)
    return request


def decode_request(
    token_ids: Sequence[int], skip_special_tokens: bool | None, model: str | None
) -> tok.DecodeRequest:
    """The request for the text of ids."""
    request = tok.DecodeRequest()
    put(request, "token_ids", token_ids)
    put(request, "skip_special_tokens", skip_special_tokens)
    put(request, "model", model)
    return request


def render_request(
    chat: Sequence[ChatMessage], model: str | None, options: Mapping[str, Any]
) -> tok.RenderChatRequest:
    """The request for the prompt that a conversation becomes."""
    request = tok.RenderChatRequest(chat=chat_input(chat, options))
    put(request, "model", model)
    return request


def count_request(
    text: str | None,
    chat: Sequence[ChatMessage] | None,
    add_special_tokens: bool | None,
    model: str | None,
    options: Mapping[str, Any],
) -> tok.CountTokensRequest:
    """The request for the length of a prompt.

    Raises:
        TypeError, ValueError: As ``generate_request``.
    """
    if (text is None) == (chat is None):
        raise TypeError("exactly one of text and chat is needed")
    request = tok.CountTokensRequest()
    put(request, "text", text)
    if chat is not None:
        request.chat.CopyFrom(chat_input(chat, options))
    put(request, "add_special_tokens", add_special_tokens)
    put(request, "model", model)
    return request


def drain_request(grace_s: float | None) -> control_pb2.DrainRequest:
    """The request to stop; the server's own grace when None."""
    request = control_pb2.DrainRequest()
    if grace_s is not None:
        request.grace.FromMilliseconds(round(grace_s * 1000))
    return request
