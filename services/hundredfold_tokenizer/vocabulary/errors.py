"""Why a checkpoint's tokenizer cannot be used."""

from __future__ import annotations


class VocabularyError(Exception):
    """A checkpoint's tokenizer cannot be used; the message says which part, its value and what is known."""
