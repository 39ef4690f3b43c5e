"""A text's ids without a service, for tools that find this through the entry point ``encode``."""

from __future__ import annotations

from hundredfold.models import gguf_metadata, resolve
from hundredfold_tokenizer.vocabulary import load_vocabulary


def encode(model: str, text: str) -> tuple[tuple[int, ...], list[int]]:
    """What the model's tokenizer puts before a text, and the ids of ``text`` itself.

    Raises:
        ModelError: The model cannot be found or read.
        VocabularyError: Its tokenizer cannot be used.
        ValueError: The text cannot be encoded.
    """
    files = resolve(model)
    metadata = gguf_metadata(files.path) if files.container == "gguf" else None
    vocabulary = load_vocabulary(files, metadata)
    return vocabulary.prefix, vocabulary.encode_text(text, add_special=False)
