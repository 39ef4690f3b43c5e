"""Fixtures of small vocabularies, for the conftest of every folder that wants them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hundredfold.models import resolve
from hundredfold_tokenizer.vocabulary import Vocabulary, load_vocabulary
from support.tiny_text_model import byte_level_model, spm_model


@pytest.fixture(scope="session")
def bpe_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE checkpoint."""
    return byte_level_model(tmp_path_factory.mktemp("models") / "bpe")


@pytest.fixture(scope="session")
def spm_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SentencePiece checkpoint with byte fallback."""
    return spm_model(tmp_path_factory.mktemp("models") / "spm")


@pytest.fixture(scope="session")
def bpe(bpe_directory: Path) -> Vocabulary:
    """Its vocabulary."""
    return load_vocabulary(resolve(str(bpe_directory)))


@pytest.fixture(scope="session")
def spm(spm_directory: Path) -> Vocabulary:
    """Its vocabulary."""
    return load_vocabulary(resolve(str(spm_directory)))
