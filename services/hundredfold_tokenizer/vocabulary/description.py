"""What both containers are turned into: a tokenizer in the library's own format, and facts about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TokenizerDescription:
    """A checkpoint's tokenizer, whatever container it came in.

    Attributes:
        tokenizer: The content of a tokenizer.json.
        bos_id: Beginning of sequence, if there is one.
        eos_ids: Ends of sequence or turn that the tokenizer itself names.
        add_bos: Whether BOS precedes a text; None leaves it to the tokenizer's own post-processor.
        add_eos: Whether EOS follows a text; None leaves it to the post-processor.
        chat_adds_bos: Whether a chat that does not begin with BOS gets one, as GGUF files expect.
        names: Texts of the named special tokens, such as ``bos_token``: what chat templates can read.
        templates: Chat templates by name; the usual one is called ``default``.
        size: Ids from here on have no text; None when every id of the vocabulary has one.
    """

    tokenizer: Json
    bos_id: int | None = None
    eos_ids: frozenset[int] = frozenset()
    add_bos: bool | None = None
    add_eos: bool | None = None
    chat_adds_bos: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    templates: Mapping[str, str] = field(default_factory=dict)
    size: int | None = None


def added_token(token_id: int, content: str, *, special: bool) -> Json:
    """One entry of ``added_tokens``, matched as it stands."""
    return {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }


def bpe(
    vocab: Mapping[str, int],
    merges: list[tuple[str, str]],
    *,
    unk_token: str | None = None,
    fuse_unk: bool = False,
    byte_fallback: bool = False,
    ignore_merges: bool = False,
) -> Json:
    """A BPE model."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unk_token,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": fuse_unk,
        "byte_fallback": byte_fallback,
        "ignore_merges": ignore_merges,
        "vocab": dict(vocab),
        "merges": [list(pair) for pair in merges],
    }


def document(
    model: Json,
    added_tokens: list[Json],
    *,
    normalizer: Json | None,
    pre_tokenizer: Json | None,
    decoder: Json,
) -> Json:
    """A whole tokenizer.json without a post-processor."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }
