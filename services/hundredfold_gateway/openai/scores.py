"""Log probabilities as chats and as completions write them."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from hundredfold.v1.generation_pb2 import TokenLogprob, TokenLogprobs

_CONTINUATION = bytes(range(0x80, 0xC0))
"""Bytes that continue a character in UTF-8."""


def chat_scores(entries: Iterable[TokenLogprobs]) -> list[dict[str, Any]]:
    """``logprobs.content`` of a chat."""
    return [
        {**_chat_score(entry.token), "top_logprobs": list(map(_chat_score, entry.top))} for entry in entries
    ]


def _chat_score(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.raw)}


class CompletionScores:
    """``logprobs`` of one choice of a completion, piece by piece, with each token's place in the text.

    Args:
        offset: Characters of the text before the first token.
    """

    def __init__(self, offset: int = 0) -> None:
        self._offset = offset
        # A token may end inside a character: the next one's place is where that character begins.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, entries: Sequence[TokenLogprobs]) -> dict[str, list[Any]]:
        """The next tokens."""
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(entry.token.raw))
        return {
            "tokens": [_name(entry.token) for entry in entries],
            "token_logprobs": [entry.token.logprob for entry in entries],
            "top_logprobs": [_best(entry) for entry in entries],
            "text_offset": offsets,
        }


def prompt_scores(text: str, first: str, entries: Sequence[TokenLogprobs]) -> dict[str, list[Any]]:
    """The scores of an echoed prompt; its first token has none, nothing precedes it.

    Args:
        text: The prompt as it is echoed.
        first: Its first token's text.
        entries: One per token of the prompt, the first empty.
    """
    rest = b"".join(entry.token.raw for entry in entries[1:]).decode("utf-8", "replace")
    written = CompletionScores(max(0, len(text) - len(rest))).write(entries[1:])
    head: dict[str, list[Any]] = {
        "tokens": [_first_name(text, first, entries)],
        "token_logprobs": [None],
        "top_logprobs": [None],
        "text_offset": [0],
    }
    return joined(head, written)


def joined(one: dict[str, list[Any]], other: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The second's tokens after the first's."""
    return {name: [*values, *other[name]] for name, values in one.items()}


def _best(entry: TokenLogprobs) -> dict[str, float]:
    """The likeliest tokens and, as OpenAI does, the chosen one; of two with one text the likelier."""
    best: dict[str, float] = {}
    for token in (*entry.top, entry.token):
        best.setdefault(_name(token), token.logprob)
    return best


def _name(token: TokenLogprob) -> str:
    """A token's text; its bytes where that is no whole text, to tell such tokens apart."""
    if "\ufffd" in token.text and token.raw:
        return _bytes_name(token.raw)
    return token.text


def _bytes_name(raw: bytes) -> str:
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _first_name(text: str, first: str, entries: Sequence[TokenLogprobs]) -> str:
    """A prompt's first token, named as the others are.

    Nothing tells its bytes: where it ends inside a character they are what the next tokens leave of that one.
    """
    broken = first.find("\ufffd")
    if broken < 0:
        return first
    after = b"".join(entry.token.raw for entry in entries[1:5])[:3]
    left = after[: len(after) - len(after.lstrip(_CONTINUATION))]
    whole = text[: broken + 1].encode("utf-8", "replace")
    if not left or not whole.endswith(left):
        return first
    raw = whole.removesuffix(left)
    return _bytes_name(raw) if raw.decode("utf-8", "replace") == first else first
