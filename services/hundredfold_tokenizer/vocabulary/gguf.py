"""Reads a tokenizer out of a GGUF file's metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hundredfold.models import GgufMetadata
from hundredfold_tokenizer.vocabulary.description import Json, TokenizerDescription, added_token
from hundredfold_tokenizer.vocabulary.errors import VocabularyError
from hundredfold_tokenizer.vocabulary.gguf_bpe import byte_level_tokenizer
from hundredfold_tokenizer.vocabulary.gguf_spm import (
    BY_POSITION,
    PREFIX_ALWAYS,
    SPACE,
    SpmStyle,
    spm_tokenizer,
)
from hundredfold_tokenizer.vocabulary.pre_tokenizers import pre_tokenizer_named

MODELS = ("gpt2", "llama")
"""Values of ``tokenizer.ggml.model`` that are read."""

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
_END_OF_TURN = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<EOT>")
_NAMED = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The vocabulary's lists, all of one length."""

    tokens: list[str]
    kinds: list[int]
    scores: list[float]

    def where(self, *kinds: int) -> list[int]:
        return [index for index, kind in enumerate(self.kinds) if kind in kinds]


def read_gguf(metadata: GgufMetadata) -> TokenizerDescription:
    """The tokenizer that a GGUF file describes.

    Raises:
        VocabularyError: Its model or pre-tokenizer is unknown, or its lists do not fit together.
        CheckpointError: A key has a value of the wrong type.
    """
    model = metadata.string("tokenizer.ggml.model")
    if model not in MODELS:
        raise VocabularyError(
            f"tokenizer.ggml.model = {str(model)[:100]!r} is not supported; supported: {', '.join(MODELS)}"
        )
    architecture = metadata.string("general.architecture") or ""
    pieces = _pieces(metadata, model, architecture)
    special = pieces.where(_CONTROL, _UNKNOWN)
    added = [added_token(index, pieces.tokens[index], special=True) for index in special]
    added += [added_token(i, pieces.tokens[i], special=False) for i in pieces.where(_USER_DEFINED)]
    added.sort(key=lambda entry: int(entry["id"]))
    ids = {name: _id(metadata, key, len(pieces.tokens)) for name, key in _NAMED.items()}
    if model == "gpt2":
        pre = pre_tokenizer_named(metadata.string("tokenizer.ggml.pre"))
        merges = metadata.strings("tokenizer.ggml.merges")
        if merges is None:
            raise VocabularyError("tokenizer.ggml.merges is missing, and a gpt2 tokenizer cannot do without")
        tokenizer = byte_level_tokenizer(pieces.tokens, merges, added, pre)
        adds_bos = pre.add_bos
    else:
        tokenizer = _spm(metadata, pieces, added, ids["unk_token"], architecture)
        adds_bos = True
    stated = metadata.boolean("tokenizer.ggml.add_bos_token")
    add_bos = (adds_bos if stated is None else stated) and ids["bos_token"] is not None
    return TokenizerDescription(
        tokenizer=tokenizer,
        bos_id=ids["bos_token"],
        eos_ids=_ends(metadata, pieces, ids["eos_token"]),
        add_bos=add_bos,
        add_eos=bool(metadata.boolean("tokenizer.ggml.add_eos_token")),
        chat_adds_bos=add_bos,
        names={name: pieces.tokens[index] for name, index in ids.items() if index is not None},
        templates=_templates(metadata),
        size=1 + max((index for index, kind in enumerate(pieces.kinds) if kind != _UNUSED), default=-1),
    )


def _pieces(metadata: GgufMetadata, model: str, architecture: str) -> _Pieces:
    tokens = metadata.strings("tokenizer.ggml.tokens")
    if not tokens:
        raise VocabularyError("tokenizer.ggml.tokens is missing or empty")
    kinds = _numbers(metadata, "tokenizer.ggml.token_type", tokens, default=_NORMAL)
    scores = _numbers(metadata, "tokenizer.ggml.scores", tokens, default=0)
    # Gemma's files spell runs of spaces with real spaces, which no text holds once spaces are replaced.
    if model == "llama" and architecture in BY_POSITION:
        tokens = [SPACE * len(t) if t and not t.strip(" ") else t for t in tokens]
    tokens = _distinct(tokens)
    return _Pieces(tokens, [int(kind) for kind in kinds], [float(score) for score in scores])


def _numbers(metadata: GgufMetadata, key: str, tokens: Sequence[str], *, default: float) -> Sequence[float]:
    values = metadata.numbers(key)
    if values is None:
        return [default] * len(tokens)
    if len(values) != len(tokens):
        raise VocabularyError(f"{key} has {len(values)} entries for {len(tokens)} tokens")
    numbers: list[float] = values.tolist()
    return numbers


def _distinct(tokens: list[str]) -> list[str]:
    """Texts are keys of the vocabulary: a second token with the same text gets one that nobody can write."""
    if len(set(tokens)) == len(tokens) and "" not in tokens:
        return tokens
    seen: set[str] = {""}
    distinct = []
    for index, token in enumerate(tokens):
        distinct.append(f"\U0010fffd{index}" if token in seen else token)
        seen.add(token)
    return distinct


def _id(metadata: GgufMetadata, key: str, size: int) -> int | None:
    index = metadata.integer(f"tokenizer.ggml.{key}")
    if index is not None and not 0 <= index < size:
        raise VocabularyError(f"tokenizer.ggml.{key} = {index} is no id of a vocabulary of {size}")
    return index


def _ends(metadata: GgufMetadata, pieces: _Pieces, eos: int | None) -> frozenset[int]:
    stated = [_id(metadata, key, len(pieces.tokens)) for key in ("eot_token_id", "eom_token_id")]
    ends = {index for index in (eos, *stated) if index is not None}
    if stated[0] is None:
        # Older files leave the end of a turn to be found by its text.
        positions = {pieces.tokens[i]: i for i in pieces.where(_CONTROL, _USER_DEFINED)}
        found = next((positions[text] for text in _END_OF_TURN if text in positions), None)
        ends |= set() if found is None else {found}
    return frozenset(ends)


def _spm(
    metadata: GgufMetadata, pieces: _Pieces, added: list[Json], unk: int | None, architecture: str
) -> Json:
    by_position = architecture in BY_POSITION
    stated = metadata.boolean("tokenizer.ggml.add_space_prefix")
    prefixed = stated if stated is not None else not by_position
    prefix_space: Literal["never", "first", "always"] = "never"
    if prefixed:
        prefix_space = "always" if architecture in PREFIX_ALWAYS else "first"
    reserved = frozenset(pieces.where(_UNKNOWN, _CONTROL, _UNUSED, _BYTE))
    return spm_tokenizer(
        pieces.tokens,
        pieces.scores,
        reserved,
        added,
        pieces.tokens[unk] if unk is not None else None,
        SpmStyle(prefix_space, by_position=by_position),
    )


def _templates(metadata: GgufMetadata) -> Mapping[str, str]:
    prefix = "tokenizer.chat_template"
    templates = {}
    for key in metadata.values:
        if key == prefix or key.startswith(prefix + "."):
            text = metadata.string(key)
            if text:
                templates[key.removeprefix(prefix).removeprefix(".") or "default"] = text
    return templates
