"""Incremental detokenizing: ids in, text out, never half a character.

The texts of all calls together are the bytes of all ids decoded as one, so streamed and whole answers agree.
Work per token is constant; the state is at most three bytes.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from hundredfold_tokenizer.vocabulary import TokenTable

_utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one growing sequence of ids.

    Args:
        table: The vocabulary.
        skip_special: Leave special tokens out.
        at_start: Whether no text precedes; SentencePiece then drops a leading space.
    """

    __slots__ = ("_partial", "_raw", "_special", "_strips", "_texts", "_utf8")

    def __init__(self, table: TokenTable, *, skip_special: bool, at_start: bool) -> None:
        self._texts = table.visible if skip_special else table.whole
        self._raw = table.raw
        self._special = table.special if skip_special else frozenset[int]()
        self._utf8 = _utf8("replace")
        self._partial = False
        self._strips = at_start and table.strips_space

    def feed(self, token_id: int) -> str:
        """The text that this id completes; ids without a token give none."""
        if not self._partial:
            try:
                text = self._texts[token_id]
            except IndexError:
                return ""
            if text is not None:
                return self._stripped(text) if self._strips and text else text
        elif token_id in self._special or token_id >= len(self._raw):
            return ""  # what is left out does not come between the bytes of a character
        text = self._utf8.decode(self._raw[token_id])
        self._partial = self._utf8.getstate()[0] != b""
        return self._stripped(text) if self._strips and text else text

    def flush(self) -> str:
        """U+FFFD if the last character never became complete, else nothing."""
        if not self._partial:
            return ""
        self._partial = False
        return self._utf8.decode(b"", final=True)

    def _stripped(self, text: str) -> str:
        self._strips = False
        return text.removeprefix(" ")


def decode(table: TokenTable, ids: Iterable[int], *, skip_special: bool) -> str:
    """The text of a whole sequence; bytes that are no UTF-8 become U+FFFD."""
    special = table.special if skip_special else frozenset[int]()
    raw, size = table.raw, len(table.raw)
    content = b"".join([raw[index] for index in ids if index < size and index not in special])
    if table.strips_space:
        content = content.removeprefix(b" ")
    return content.decode("utf-8", "replace")
