"""Text to ids and back without a service, for tools that find this as ``encode`` and ``decode``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from hundredfold.models import gguf_metadata, resolve
from hundredfold_tokenizer.vocabulary import Vocabulary, load_vocabulary


def encode(model: str, text: str) -> tuple[tuple[int, ...], list[int]]:
    """What the model's tokenizer puts before a text, and the ids of ``text`` itself.

    Raises:
        ModelError: The model cannot be found or read.
        VocabularyError: Its tokenizer cannot be used.
        ValueError: The text cannot be encoded.
    """
    vocabulary = _vocabulary(model)
    return vocabulary.prefix, vocabulary.encode_text(text, add_special=False)


def decode(model: str, ids: Sequence[int]) -> str:
    """Text of ids, special tokens shown; what is no whole character is replaced. Raises as ``encode``."""
    raw = _vocabulary(model).table.raw
    return b"".join(raw[index] if 0 <= index < len(raw) else b"" for index in ids).decode(errors="replace")


@lru_cache(maxsize=1)
def _vocabulary(model: str) -> Vocabulary:
    files = resolve(model)
    metadata = gguf_metadata(files.path) if files.container == "gguf" else None
    return load_vocabulary(files, metadata)
