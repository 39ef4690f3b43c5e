"""What each id contributes to a text: its bytes, its text where the bytes are whole characters, and whether
it is special."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hundredfold_tokenizer.vocabulary.byte_alphabet import to_bytes
from hundredfold_tokenizer.vocabulary.description import Json
from hundredfold_tokenizer.vocabulary.errors import VocabularyError
from hundredfold_tokenizer.vocabulary.tokenizer_json import ids_by_text

MAX_TOKENS = 4_000_000
"""Most ids that a vocabulary may have."""

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The vocabulary as the detokenizer needs it: lists by id, which a step may look up thousands of times.

    Attributes:
        raw: Bytes of each id; empty for ids without a token.
        whole: Text of each id whose bytes are whole characters by themselves, else None.
        visible: The same with special tokens as empty text, for answers that leave them out.
        special: Ids that ``skip_special_tokens`` leaves out.
        strips_space: Whether a text that begins with a space loses it, as SentencePiece wants.
    """

    raw: Sequence[bytes]
    whole: Sequence[str | None]
    visible: Sequence[str | None]
    special: frozenset[int]
    strips_space: bool

    @property
    def size(self) -> int:
        """Ids from here on are unknown."""
        return len(self.raw)


def token_table(tokenizer: Json, size: int | None) -> TokenTable:
    """The table of a tokenizer.json, cut to ``size`` ids if that is given.

    Raises:
        VocabularyError: Its decoder is of a kind that is not known here, or its ids are out of bounds.
    """
    byte_level, strips_space = _decoder(tokenizer.get("decoder"))
    added = tokenizer["added_tokens"]
    ids = ids_by_text(tokenizer)
    highest = max(ids.values(), default=-1)
    if highest >= MAX_TOKENS or min(ids.values(), default=0) < 0:
        raise VocabularyError(f"token id {highest} is out of bounds; the limit is {MAX_TOKENS}")
    count = highest + 1 if size is None else min(size, highest + 1)
    raw = [b""] * count
    of = to_bytes if byte_level else _piece_bytes
    for text, index in ids.items():
        if index < count:
            raw[index] = of(text)
    for entry in added:
        # An added token is matched in the text as it stands, so that is what it gives back.
        if entry["id"] < count:
            text = entry["content"]
            raw[entry["id"]] = text.encode() if byte_level else _piece_bytes(text)
    whole = [_as_text(content) for content in raw]
    special = frozenset(entry["id"] for entry in added if entry.get("special"))
    visible = ["" if index in special else text for index, text in enumerate(whole)]
    return TokenTable(raw, whole, visible, special, strips_space)


def _piece_bytes(piece: str) -> bytes:
    byte = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace("▁", " ").encode()


def _as_text(content: bytes) -> str | None:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def _decoder(decoder: Any) -> tuple[bool, bool]:
    """Whether a decoder reads the byte alphabet, and whether it strips a leading space."""
    steps = _steps(decoder)
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"] or kinds == ["ByteLevel", "Fuse"]:
        return True, False
    if kinds == ["Metaspace"] and steps[0].get("replacement", "▁") == "▁":
        scheme = steps[0].get("prepend_scheme")
        never = scheme == "never" or (scheme is None and steps[0].get("add_prefix_space") is False)
        return False, not never
    replace: Json = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    strip: Json = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    rest = [step for step in steps if step.get("type") not in ("ByteFallback", "Fuse")]
    if rest == [replace]:
        return False, False
    if rest == [replace, strip]:
        return False, True
    shown = ", ".join(str(kind) for kind in kinds) or "none"
    raise VocabularyError(
        f"decoder = {shown[:200]} is unknown; known: ByteLevel, Metaspace, Replace with ByteFallback"
    )


def _steps(decoder: Any) -> list[Json]:
    if not isinstance(decoder, dict):
        return []
    if decoder.get("type") == "Sequence":
        inner = decoder.get("decoders")
        return [step for part in inner for step in _steps(part)] if isinstance(inner, list) else []
    return [decoder]
