"""Renders checked conversations with the served model's template, and keeps users' special tokens text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from hundredfold.rpc import RequestError
from hundredfold_tokenizer.chat.marking import Edges, Marker
from hundredfold_tokenizer.chat.process import RenderProcess
from hundredfold_tokenizer.validation.chat import Chat
from hundredfold_tokenizer.validation.errors import invalid
from hundredfold_tokenizer.vocabulary import Vocabulary

_WITH_TOOLS = "tool_use"


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A conversation as one text.

    Attributes:
        text: With special tokens spelt out, for people.
        spelt: With the template's special tokens as the encoder spells them.
    """

    text: str
    spelt: str


class ChatTemplate:
    """The chat templates of the served model.

    Args:
        vocabulary: Brings the templates and the special tokens.
        process: Where they are rendered.
        model: The model's name, for messages.
    """

    def __init__(self, vocabulary: Vocabulary, process: RenderProcess, model: str) -> None:
        self._vocabulary = vocabulary
        self._process = process
        self._model = model
        self._edges = Edges(list(vocabulary.encoder.controls))
        self._sources = "".join(vocabulary.templates.values())

    async def render(self, chat: Chat) -> RenderedChat:
        """The prompt of a conversation.

        Raises:
            RequestError: FAILED_PRECONDITION without a usable template, INVALID_ARGUMENT when it refuses the
            chat.
        """
        name = self._choose(chat.tools is not None)
        written = {"messages": chat.messages, "tools": chat.tools, **chat.arguments}
        taken = json.dumps(written, ensure_ascii=False) + self._sources
        try:
            marker = Marker(self._vocabulary.encoder.written(), self._edges, taken)
        except ValueError as error:
            raise RequestError(grpc.StatusCode.INVALID_ARGUMENT, f"chat {error}", field="chat") from None
        marked: dict[str, Any] = {
            **self._vocabulary.names,
            "documents": None,
            **marker.mark(chat.arguments),
            "messages": [_mark_turn(marker, turn) for turn in chat.messages],
            "tools": marker.mark(chat.tools),
            "add_generation_prompt": chat.add_generation_prompt,
        }
        if chat.continue_final:
            marked["messages"][-1]["content"] += marker.cut + " "
        rendered = await self._process.render(name, marked)
        if chat.continue_final:
            rendered = _cut(rendered, marker.cut)
        return RenderedChat(*marker.unmark(rendered, self._vocabulary.encoder.spell))

    def _choose(self, with_tools: bool) -> str:
        templates: Mapping[str, str] = self._vocabulary.templates
        if with_tools and _WITH_TOOLS in templates:
            return _WITH_TOOLS
        if "default" in templates:
            return "default"
        raise RequestError(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"model {self._model!r} has no chat template; send text or token_ids instead",
            field="chat",
        )


def _mark_turn(marker: Marker, turn: Mapping[str, Any]) -> dict[str, Any]:
    """All of a turn but its role, which templates compare and was checked to be harmless."""
    return {key: value if key == "role" else marker.mark(value) for key, value in turn.items()}


def _cut(rendered: str, mark: str) -> str:
    """The text up to the end of the last turn's words, where they are to be continued."""
    position = rendered.rfind(mark)
    if position < 0:
        raise invalid(
            "chat.continue_final_message", True, "fails: the chat template leaves out the last message"
        )
    before = rendered[:position]
    # The mark is followed by a space; a template that trims the message took it, and would have trimmed
    # before it.
    return before if rendered[position + 1 : position + 2] == " " else before.rstrip()
