"""SentencePiece BPE with byte fallback out of GGUF metadata (``tokenizer.ggml.model`` = llama).

Such files list pieces and scores but no merges; a merge is every way to join two pieces into a third, the
best piece first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hundredfold_tokenizer.vocabulary.description import Json, bpe, document

SPACE = "▁"
"""How SentencePiece writes a space."""


@dataclass(frozen=True, slots=True)
class SpmStyle:
    """What differs between families of SentencePiece vocabularies.

    Attributes:
        prefix_space: Where a space is read that nobody wrote: before the text, or also after each special
            token.
        by_position: Whether pieces rank by their place in the file instead of by their score.
    """

    prefix_space: Literal["never", "first", "always"]
    by_position: bool = False


BY_POSITION = frozenset({"gemma", "gemma2", "gemma3", "gemma3n"})
"""Architectures whose scores do not follow the order in which their merges were learnt."""

PREFIX_ALWAYS = frozenset({"phi3"})
"""Architectures that read a space after every special token."""


def spm_tokenizer(
    tokens: Sequence[str],
    scores: Sequence[float],
    reserved: frozenset[int],
    added: list[Json],
    unk_token: str | None,
    style: SpmStyle,
) -> Json:
    """The tokenizer.json of a SentencePiece vocabulary.

    Args:
        tokens: Piece of each id.
        scores: Score of each id.
        reserved: Ids that no merge makes or uses: control, unknown, byte and unused ones.
        added: Entries of added tokens.
        unk_token: Piece that stands for what has no token.
        style: The family's ways.
    """
    vocab = {piece: index for index, piece in enumerate(tokens)}
    mergeable = {piece: index for piece, index in vocab.items() if index not in reserved}
    rank = {
        piece: float(-index if style.by_position else scores[index]) for piece, index in mergeable.items()
    }
    decoders: list[Json] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if style.prefix_space != "never":
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    normalizer, pre_tokenizer = _spaces(style)
    return document(
        bpe(vocab, merges_of(mergeable, rank), unk_token=unk_token, fuse_unk=True, byte_fallback=True),
        added,
        normalizer=normalizer,
        pre_tokenizer=pre_tokenizer,
        decoder={"type": "Sequence", "decoders": decoders},
    )


def _spaces(style: SpmStyle) -> tuple[Json | None, Json | None]:
    """Normalizer and pre-tokenizer that write spaces the vocabulary's way."""
    replace: Json = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    if style.prefix_space == "first":
        return None, {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}
    if style.prefix_space == "always":
        return {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, replace]}, None
    return replace, None


def merges_of(vocab: Mapping[str, int], rank: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every pair of pieces that makes a piece, pairs of the best piece first."""
    found: list[tuple[float, int, int, str, str]] = []
    for piece in vocab:
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocab and right in vocab:
                found.append((-rank[piece], -len(left), -len(right), left, right))
    found.sort(key=lambda pair: pair[:3])
    return [(left, right) for *_, left, right in found]
