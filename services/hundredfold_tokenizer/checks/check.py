"""All checks of the text side, for `hundredfold diagnose`, which finds this as the tool ``check-text``."""

from __future__ import annotations

from collections.abc import Iterator

from hundredfold.findings import Finding, Severity
from hundredfold.models import gguf_metadata, resolve
from hundredfold_tokenizer.checks.ends import check_ends
from hundredfold_tokenizer.checks.sizes import check_defaults, check_sizes
from hundredfold_tokenizer.checks.stated import read_stated
from hundredfold_tokenizer.checks.template import check_template
from hundredfold_tokenizer.vocabulary import load_vocabulary
from hundredfold_tokenizer.vocabulary.errors import VocabularyError


def check(model: str) -> list[Finding]:
    """Every finding, those that looked and found nothing included.

    Raises:
        ModelError: The model cannot be found or its headers are damaged.
    """
    return list(_check(model))


def _check(model: str) -> Iterator[Finding]:
    files = resolve(model)
    metadata = gguf_metadata(files.path) if files.container == "gguf" else None
    try:
        vocabulary = load_vocabulary(files, metadata)
        stated = read_stated(files, metadata, vocabulary)
    except VocabularyError as error:
        yield Finding(
            "tokenizer-unusable",
            Severity.ERROR,
            str(error),
            "a file is missing, damaged, or of a kind that is not read",
            "fetch tokenizer.json and tokenizer_config.json of the original model again",
        )
        return
    yield from check_sizes(vocabulary, stated)
    yield from check_ends(vocabulary, stated)
    yield from check_template(vocabulary, stated, files.name)
    yield from check_defaults(stated)
