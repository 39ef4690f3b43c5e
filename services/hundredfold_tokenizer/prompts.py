"""From any kind of input to token ids, the same for Generate, CountTokens and RenderChat."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from hundredfold.v1 import generation_pb2 as pb
from hundredfold_tokenizer import limits
from hundredfold_tokenizer.chat.template import ChatTemplate, RenderedChat
from hundredfold_tokenizer.encoding import EncodePool
from hundredfold_tokenizer.validation.chat import check_chat
from hundredfold_tokenizer.validation.errors import invalid
from hundredfold_tokenizer.vocabulary import Vocabulary

_CHAT_FRAME_BYTES = 64 * 1024
"""What a template may add to a chat, and what names and JSON may take, beside the words that are encoded."""


@dataclass(frozen=True, slots=True)
class EncodedChat:
    """A rendered conversation and its ids."""

    text: str
    token_ids: list[int]


class Prompts:
    """Encodes prompts.

    Args:
        vocabulary: The served model's.
        template: Its chat template.
        pool: Where long texts are encoded.
        max_bytes: Largest text.
    """

    def __init__(
        self, vocabulary: Vocabulary, template: ChatTemplate, pool: EncodePool, max_bytes: int
    ) -> None:
        self._vocabulary = vocabulary
        self._template = template
        self._pool = pool
        self._max_bytes = max_bytes
        self._longest_token = max(map(len, vocabulary.table.raw), default=1) or 1

    def most_bytes(self, max_model_len: int | None) -> int:
        """Longest text that fits ``max_model_len`` tokens; a longer one is refused before it is encoded."""
        if max_model_len is None:
            return self._max_bytes
        return min(self._max_bytes, max_model_len * self._longest_token)

    async def text(
        self,
        text: str,
        *,
        add_special: bool,
        max_model_len: int | None,
        parse_special: bool = False,
        field: str = "text",
    ) -> list[int]:
        """Ids of a text.

        Raises:
            RequestError: INVALID_ARGUMENT when it is too long or cannot be encoded.
        """
        size = _num_bytes(text)
        most = self.most_bytes(max_model_len)
        if size > most:
            raise invalid(field, f"{size} bytes", self._above(most))
        try:
            return await self._pool.run(
                lambda: self._vocabulary.encode_text(
                    text, add_special=add_special, parse_special=parse_special
                ),
                size,
            )
        except ValueError as error:
            raise invalid(field, f"{size} bytes", str(error)) from None

    def _above(self, most: int) -> str:
        which = "max_prompt_bytes" if most == self._max_bytes else "all that the context length can hold"
        return f"is above the limit {most}, which is {which}"

    async def chat(self, message: pb.ChatInput, *, max_model_len: int | None) -> EncodedChat:
        """Text and ids of a conversation.

        Raises:
            RequestError: INVALID_ARGUMENT, or FAILED_PRECONDITION without a usable template.
        """
        most = self.most_bytes(max_model_len)
        rendered: RenderedChat = await self._template.render(check_chat(message, most + _CHAT_FRAME_BYTES))
        size = _num_bytes(rendered.text)
        if size > most:
            raise invalid("chat", f"{size} bytes", self._above(most))
        try:
            ids = await self._pool.run(lambda: self._vocabulary.encode_chat(rendered.spelt), size)
        except ValueError as error:
            raise invalid("chat", f"{size} bytes", str(error)) from None
        return EncodedChat(rendered.text, ids)

    async def bad_words(self, words: Sequence[str]) -> list[list[int]]:
        """The runs of ids that spell the words, inside a text and after a space.

        Raises:
            RequestError: INVALID_ARGUMENT when one takes too many tokens.
        """
        if not words:
            return []
        try:
            return await self._pool.run(lambda: self._spellings(words), sum(map(len, words)))
        except ValueError as error:
            raise invalid("sampling.bad_words", f"{len(words)} texts", str(error)) from None

    def _spellings(self, words: Sequence[str]) -> list[list[int]]:
        found: dict[tuple[int, ...], None] = {}
        for index, word in enumerate(words):
            for text in (word, f" {word}"):
                ids = tuple(self._vocabulary.encode_inside(text))
                if len(ids) > limits.MAX_BAD_WORD_TOKENS:
                    limit = f"is above the limit {limits.MAX_BAD_WORD_TOKENS}"
                    raise invalid(f"sampling.bad_words[{index}]", f"{len(ids)} tokens", limit)
                if ids:
                    found[ids] = None
        return [list(ids) for ids in found]


def packed(ids: Sequence[int]) -> array[int]:
    """Ids at four bytes each: prompts are kept for as long as their requests run."""
    return array("I", ids)


def _num_bytes(text: str) -> int:
    """Length in UTF-8; one pass over the characters only where it is needed."""
    return len(text) if text.isascii() else len(text.encode())
