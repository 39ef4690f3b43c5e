"""The printable alphabet in which byte-level vocabularies spell bytes (GPT-2's)."""

from __future__ import annotations


def _alphabet() -> dict[str, int]:
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    letters = {chr(byte): byte for byte in plain}
    rest = (byte for byte in range(256) if byte not in set(plain))
    letters.update({chr(256 + index): byte for index, byte in enumerate(rest)})
    return letters


BYTE_OF = _alphabet()
"""The byte that each letter stands for; 256 letters."""

_LETTERS = frozenset(BYTE_OF)
_TO_LATIN_1 = {ord(letter): byte for letter, byte in BYTE_OF.items()}


def to_bytes(token: str) -> bytes:
    """The bytes that a token spells; a token that is not written in the alphabet stands for its own text."""
    if _LETTERS.issuperset(token):
        return token.translate(_TO_LATIN_1).encode("latin-1")
    return token.encode()
